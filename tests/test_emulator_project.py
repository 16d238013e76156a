"""The project's own kernels run in lab/emulator, unchanged: right values, no alarm, and the bugs of bugs.cu found."""

import ctypes
import sys
from pathlib import Path

import pytest
import torch

from lab import emulator
from lab.emulator import out

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
INCLUDE = [f"-I{EXAMPLES}", f"-I{ROOT / 'include'}"]


@pytest.fixture(scope="module")
def load(emulator_cache):
    return lambda name, *flags: emulator.load(ROOT / name, [*INCLUDE, *flags])


def run(function, *arguments, **options):
    report = emulator.run(function, *arguments, **options)
    assert report.error is None, report
    assert not report.faults, report
    assert not report.unwritten, report
    return report


# ---- The first lessons.


@pytest.mark.anywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transpositions_at_edges(load, dtype):
    kernels = load("examples/transpose/transpose.cu")
    function = kernels.launch_4_bytes if dtype == torch.float32 else kernels.launch_2_bytes
    for height, width in ((1, 1), (1, 100), (33, 31), (65, 127), (100, 78), (130, 140)):
        x = torch.randn(height, width).to(dtype)
        for rung in range(1, 6):
            y = x.new_zeros(width, height)
            run(function, rung, out(y), x, height, width)
            assert torch.equal(y, x.t())


def test_reductions(load):
    row_sum = load("examples/reduction/row_sum.cu").launch_row_sum
    softmax = load("examples/reduction/softmax.cu").launch_softmax
    for width in (1, 33, 1001):
        x = torch.randn(5, width)
        x[1, 0], x[2, -1], x[3, width // 2] = float("nan"), float("nan"), float("-inf")
        sums, y = torch.empty(5), torch.empty_like(x)
        run(row_sum, out(sums), x, 5, width)
        torch.testing.assert_close(sums, x.double().sum(1).float(), equal_nan=True)
        run(softmax, out(y), x, 5, width)
        torch.testing.assert_close(y, x.double().softmax(1).float(), equal_nan=True)


def test_minimal_and_rope(load):
    kernels = load("examples/minimal/minimal_kernel.cu")
    a, b, c = torch.randn(1000), torch.randn(1000), torch.empty(1000)
    run(kernels.launch_add, out(c), a, b, 1000)
    assert torch.equal(c, a + b)
    run(kernels.add[4, 256], out(c), a, b, 1000)


@pytest.mark.thorough
def test_kernels_with_headers_of_torch(run, emulator_cache):
    """In a process of its own: the library of mistakes.cu registers its operators, which a process may do only once."""
    include, libraries = Path(torch.__file__).parent / "include", Path(torch.__file__).parent / "lib"
    link = [f"-L{libraries}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    program = f"""
from pathlib import Path
import torch
from lab import emulator
def run(function, *arguments):
    report = emulator.run(function, *arguments)
    assert report.error is None and not report.faults and not report.unwritten, report
a, b, c = torch.randn(5), torch.randn(5), torch.empty(5)
mistakes = emulator.load(Path("examples/mistakes/mistakes.cu"), flags={[f"-I{include}", "-DUSE_CUDA", *link]})
run(mistakes.add_kernel[1, 256], emulator.out(c), a, b, 5)
assert torch.equal(c, a + b)
starter = emulator.load(Path("examples/starter/csrc/squared_relu_forward.cu"), flags={[f"-I{include}"]})
float32 = 6  # of torch's ScalarType
run(starter.launch_squared_relu, emulator.out(c), a, 1.5, 5, float32)
torch.testing.assert_close(c, 1.5 * a.relu().square())
print("right")
"""
    assert run("-c", program).stdout == "right\n"


@pytest.mark.anywhere
def test_bugs_are_found(load):
    kernels = load("examples/debug/bugs.cu")
    source = (EXAMPLES / "debug/bugs.cu").read_text().splitlines()

    def zeros(n):
        return torch.zeros(n)

    def found(function, *arguments):
        faults = emulator.run(function, *arguments, steps=1 << 18).faults
        return {(fault.kind, source[fault.line - 1].strip()) for fault in faults}

    store, add = "x[i] = 1;", "if (i < n) c[i] = a[i] + b[i];"
    assert found(kernels.start_store, zeros(1), 1, 1 << 20) == {("out of bounds", store)}
    assert found(kernels.start_store, zeros(1), 1, 1) == {("out of bounds", store)}
    assert found(kernels.start_add, zeros(5), zeros(5), zeros(3), 5, 256) == {("out of bounds", add)}
    assert found(kernels.start_add, zeros(5), out(zeros(5)), zeros(5), 5, 256) == {("uninitialized", add)}
    launch = "add<<<unsigned(blocks), unsigned(threads), 0, stream>>>(c, a, b, n);"
    assert found(kernels.start_add, zeros(5), zeros(5), zeros(5), 5, 2048) == {("launch", launch)}
    race = "for (int warp = 0; warp < 8; ++warp) total += sums[warp];"
    assert found(kernels.start_sum, zeros(1), torch.ones(256)) == {("race", race)}
    assert found(kernels.start_half, zeros(64)) == {("barrier", "if (threadIdx.x % 32 < 16) __syncthreads();")}
    assert found(kernels.start_wait, zeros(1)) == {("hang", "while (*flag == 0) {")}


# ---- The operator.

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
PLAIN, VECTOR, UNALIGNED = range(3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add2(load, dtype):
    launch = load("kernel/add2_kernel.cu").launch_add2_cuda_kernel
    for n in (0, 1, 255, 256, 257, (1 << 12) + 1):
        a, b = torch.randn(2, n).to(dtype).unbind()
        a, b = a.clone(), b.clone()
        for kernel in (PLAIN, VECTOR, UNALIGNED):
            c = torch.empty_like(a)
            run(launch, kernel, out(c), a, b, n, DTYPES.index(dtype))
            assert torch.equal(c, a + b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add2_at_any_address_and_in_place(load, dtype):
    kernels = load("kernel/add2_kernel.cu")
    tensors = torch.randn(3, 300).to(dtype)
    for offsets in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 2, 3)):
        c, a, b = (row.clone()[offset : offset + 280] for row, offset in zip(tensors, offsets, strict=True))
        right = a + b
        report = run(kernels.launch_add2_cuda, c, a, b, 280, DTYPES.index(dtype))
        is_aligned = all(x.data_ptr() % 16 == 0 for x in (a, b, c))
        assert ("add2_vector" in report.launches[0].kernel) == is_aligned
        assert torch.equal(c, right)
        run(kernels.launch_add2_cuda, a, a, b, 280, DTYPES.index(dtype))
        assert torch.equal(a, right)


def test_misaligned_vectors_of_add2(load):
    launch = load("kernel/add2_kernel.cu").launch_add2_cuda_kernel
    a, b, c = torch.randn(3, 300).unbind()
    report = emulator.run(launch, VECTOR, c, a[1:], b, 256, 0)
    assert {fault.kind for fault in report.faults} == {"misaligned"}


# ---- The ladders, up to the first rung that needs Hopper.


@pytest.mark.anywhere
@pytest.mark.thorough
def test_matmul(load):
    launch = load("examples/matmul/ladder.cu").launch_ladder
    for m, n, k in ((128, 128, 64), (100, 72, 40)):
        a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
        for rung in range(1, 5):
            c = torch.empty(m, n, dtype=torch.bfloat16)
            run(launch, rung, out(c), a, b, m, n, k)
            torch.testing.assert_close(c.float(), a.float() @ b.float().t(), rtol=0.01, atol=0.02)
    report = emulator.run(launch, 5, c, a, b, m, n, k)
    assert report.faults[0].message.startswith("cuTensorMapEncodeTiled needs a GPU")


TENSORS = "y", "s", "rstd", "a", "b", "weight", "dx", "dweight", "sums", "dy", "ds"


class Problem(ctypes.Structure):
    """As in add_rms_norm/ladder.cu."""

    _fields_ = [(name, ctypes.c_void_p) for name in TENSORS]
    _fields_ += [("rows", ctypes.c_int64), ("width", ctypes.c_int), ("blocks", ctypes.c_int)]


def rms_norm(s, weight):
    rstd = (s.float().square().mean(1) + 1e-6).rsqrt()
    return s.float() * rstd[:, None] * weight.float(), rstd


@pytest.mark.anywhere
def test_rms_norm(load):
    launch = load("examples/add_rms_norm/ladder.cu").launch_ladder
    rows, width = 5, 512
    inputs = {name: torch.randn(rows, width).bfloat16() for name in ("a", "b", "dy", "ds")}
    inputs["weight"] = torch.randn(width).bfloat16()
    s = inputs["a"] + inputs["b"]
    y, rstd = rms_norm(s, inputs["weight"])

    def call(rung, results, **more):
        tensors = inputs | more | results
        pointers = {name: x.data_ptr() for name, x in tensors.items()}
        problem = Problem(**pointers, rows=rows, width=width, blocks=3)
        run(launch, rung, ctypes.byref(problem), tensors=tensors | {name: out(x) for name, x in results.items()})
        return results

    tensors = inputs | {"y": torch.empty_like(s), "s": torch.empty_like(s), "rstd": torch.empty(rows)}
    problem = Problem(**{name: x.data_ptr() for name, x in tensors.items()}, rows=rows, width=width)
    emulator.run(launch, 0, ctypes.byref(problem), tensors=tensors)  # the reference, which is no kernel
    for rung in range(7):
        made = tensors
        if rung > 0:
            made = call(rung, {"y": torch.empty_like(s), "s": torch.empty_like(s), "rstd": torch.empty(rows)})
        assert torch.equal(made["s"], s)
        torch.testing.assert_close(made["rstd"], rstd)
        torch.testing.assert_close(made["y"].float(), y, rtol=0.01, atol=0.01)

    x = s.float().requires_grad_()
    weight = inputs["weight"].float().requires_grad_()
    rms_norm(x, weight)[0].backward(inputs["dy"].float())
    for rung in (7, 8):
        results = {"dx": torch.empty_like(s), "dweight": torch.empty(width).bfloat16(), "sums": torch.empty(3, width)}
        made = call(rung, results, s=s, rstd=rstd)
        torch.testing.assert_close(made["dx"].float(), x.grad + inputs["ds"].float(), rtol=0.02, atol=0.02)
        torch.testing.assert_close(made["dweight"].float(), weight.grad, rtol=0.02, atol=0.02)


@pytest.mark.anywhere
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["half", "double"])
def test_rms_norm_of_any_width(load, name):
    launch = getattr(load("tests/emulator/any_width.cu", f"-I{EXAMPLES / 'add_rms_norm'}"), f"launch_{name}")
    dtype, statistics = (torch.float16, torch.float32) if name == "half" else (torch.float64, torch.float64)
    for width, is_whole in ((1024, True), (1024, False), (1001, False)):
        a, b, weight = torch.randn(3, width).to(dtype), torch.randn(3, width).to(dtype), torch.randn(width).to(dtype)
        y, s, rstd = torch.empty_like(a), torch.empty_like(a), torch.empty(3, dtype=statistics)
        run(launch, is_whole, out(y), out(s), out(rstd), a, b, weight, False, 1e-6, 3, width)
        right = (a + b).double()
        scale = (right.square().mean(1) + 1e-6).rsqrt()
        assert torch.equal(s, a + b)
        tolerance = {"rtol": 2e-3, "atol": 2e-3} if name == "half" else {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(y.double(), right * scale[:, None] * weight.double(), **tolerance)


@pytest.mark.anywhere
@pytest.mark.thorough
def test_int4_linear(load, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "int4_linear"))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    packing = __import__("int4_packing")
    launch = load("examples/int4_linear/ladder.cu").launch_ladder
    m, n, k, group = 3, 64, 256, 128
    codes, zero = (torch.randint(0, 16, shape) for shape in ((n, k), (n, k // group)))
    packed = packing.pack(codes, torch.rand(n, k // group).bfloat16(), zero)
    eight = codes.view(n, -1, 8).long()
    row_by_row = sum(eight[..., i] << 4 * i for i in range(8)).to(torch.uint32).view(torch.int32)
    weight = (codes - zero.repeat_interleave(group, 1)) * packed[1].t().float().repeat_interleave(group, 1)
    x = torch.randn(m, k).bfloat16()
    for rung in (1, 2, 3):
        y = torch.empty(m, n).bfloat16()
        run(launch, rung, out(y), x, row_by_row if rung == 1 else packed[0], *packed[1:], m, n, k)
        torch.testing.assert_close(y.float(), x.float() @ weight.t(), rtol=0.01, atol=0.5)


@pytest.mark.anywhere
@pytest.mark.thorough
@pytest.mark.parametrize(("shape", "rows"), [(0, 64), (4, 128), (5, 64)])
def test_int4_few_rows(load, shape, rows, monkeypatch):
    """The operator's kernel: an infinite x, tiles with unequal strips, half a group at the end of K, a gate."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "int4_linear"))
    packing = __import__("int4_packing")
    launch = load("tests/emulator/few_rows.cu", f"-I{EXAMPLES / 'int4_linear'}").launch_few_rows
    for n, k, m, tiles, is_gated in (
        (128, 320, 5, 128 // rows, False),
        (192, 192, 9, 5, False),
        (192, 1216, 9, 3, True),
    ):
        groups = -(-k // 128)
        codes, zero = torch.randint(0, 16, (n, k)), torch.randint(0, 16, (n, groups))
        packed = packing.pack(codes, torch.rand(n, groups).bfloat16(), zero)
        weight = codes - zero.repeat_interleave(128, 1)[:, :k]
        weight = weight * packed[1].t().double().repeat_interleave(128, 1)[:, :k]
        x, bias = torch.randn(m, k).bfloat16(), torch.randn(n).bfloat16()
        if n == 128:  # here all warps have as many strips as they can: the second try reads that many
            x[1, 7] = torch.inf
        right = x.double() @ weight.t() + bias.double()
        if is_gated:
            right = torch.nn.functional.silu(right[:, 0::2]) * right[:, 1::2]
        y = torch.empty_like(right, dtype=torch.bfloat16)
        run(launch, shape, out(y), x, *packed, bias, is_gated, m, n, k, tiles)
        largest = right[right.isfinite()].abs().max().item()
        torch.testing.assert_close(y.double(), right, rtol=0.01, atol=0.01 * largest, equal_nan=True)


@pytest.mark.anywhere
@pytest.mark.thorough
@pytest.mark.parametrize("shape", [0, 1])
def test_int4_around_a_norm(load, shape, monkeypatch):
    """A residual and squares after a product, 1 / rms after another: some rows, tiles with unequal strips, a gate."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "int4_linear"))
    packing = __import__("int4_packing")
    library = load("tests/emulator/few_rows.cu", f"-I{EXAMPLES / 'int4_linear'}")
    for n, k, m, tiles in ((128, 320, 1, 3), (192, 192, 8, 5), (192, 1216, 3, 3)):
        codes, zero = torch.randint(0, 16, (n, k)), torch.randint(0, 16, (n, -(-k // 128)))
        packed = packing.pack(codes, torch.rand(zero.shape).bfloat16() * 0.01, zero)
        affine = [each.t().double().repeat_interleave(128, 1)[:, :k] for each in packed[1:]]
        exact = (codes - affine[1]) * affine[0]
        x, residual, bias, norm = (torch.randn(each).bfloat16() for each in ((m, k), (m, n), (n,), (n,)))
        s, weighted, squares = torch.empty_like(residual), torch.empty_like(residual), torch.empty(m, n // 16)
        results = out(s), out(weighted), out(squares)
        run(library.launch_before_norm, shape, *results, x, *packed, bias, residual, norm, m, n, k, tiles)
        right = x.double() @ exact.t() + bias.double() + residual.double()
        torch.testing.assert_close(s.double(), right, rtol=0.02, atol=0.05)
        assert torch.equal(weighted, (s.float() * norm.float()).bfloat16())
        torch.testing.assert_close(squares, s.float().square().unflatten(1, (-1, 16)).sum(-1))
        for is_gated in (False, True):
            before = torch.rand(m, k // 16) * 16
            y = torch.empty(m, n // 2 if is_gated else n, dtype=torch.bfloat16)
            end = ctypes.c_float(1e-5), *packed, bias, is_gated, m, n, k, tiles
            run(library.launch_after_norm, shape, out(y), x, before, *end)
            scale = (before.double().sum(1, keepdim=True) / k + 1e-5).rsqrt()
            right = x.double() @ exact.t() * scale + bias.double()
            if is_gated:
                right = torch.nn.functional.silu(right[:, 0::2]) * right[:, 1::2]
            torch.testing.assert_close(y.double(), right, rtol=0.02, atol=0.05)


@pytest.mark.anywhere
@pytest.mark.thorough
def test_decode_attention(load):
    launch = load("examples/decode_attention/ladder.cu").launch_ladder
    heads, tokens = 8, 100
    q, keys, values = (torch.randn(*shape, 128).bfloat16() for shape in ((heads,), (2, tokens), (2, tokens)))
    all_keys, all_values = (x.double().repeat_interleave(4, 0) for x in (keys, values))
    weights = (torch.einsum("hd,htd->ht", q.double(), all_keys) * 128**-0.5).softmax(1)
    right = torch.einsum("ht,htd->hd", weights, all_values)
    for rung in range(6):  # 0 is the reference
        y = torch.empty(heads, 128).bfloat16()
        run(launch, rung, out(y), q, keys, values, heads, tokens)
        torch.testing.assert_close(y.double(), right, rtol=0.02, atol=0.01)


@pytest.mark.thorough
@pytest.mark.anywhere
def test_emulator_imports_nothing_of_the_project(emulator_cache, tmp_path):
    """A copy of only the folder works, with torch and g++."""
    import shutil
    import subprocess

    shutil.copytree(ROOT / "lab/emulator", tmp_path / "emulator")
    shutil.copy(EXAMPLES / "reduction/row_sum.cu", tmp_path)
    code = "import emulator, torch; k = emulator.load('row_sum.cu'); y = torch.empty(2); "
    code += "print(emulator.run(k.launch_row_sum, emulator.out(y), torch.ones(2, 50), 2, 50)); print(y)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "tensor([50., 50.])" in done.stdout, done.stderr
