"""examples/4_add_rms_norm: values and gradients against float64, and everything that torch asks of an operator."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils import cpp_extension

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "4_add_rms_norm"
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
HALVES = [torch.float16, torch.bfloat16]
EPS = 1e-6


def cuda_home():
    """nvcc on PATH may be a wrapper far from its toolkit; nvcc knows where that is."""
    nvcc = shutil.which("nvcc")
    if nvcc is None or torch.version.cuda is None:
        return os.environ.get("CUDA_HOME")
    said = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True, check=False)
    found = re.search(r"TOP=(.+)", said.stderr)
    return str(Path(found[1]).resolve()) if found else None


@pytest.fixture(scope="module")
def lib():
    os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]  # ninja
    sys.path.insert(0, str(FOLDER))
    cpp_extension.CUDA_HOME = cuda_home()
    import add_rms_norm

    add_rms_norm.build()
    return add_rms_norm


def make(shape, dtype=torch.float32, device="cpu", scale=1.0, seed=0, weight_dtype=None):
    """a, b, weight, dy, ds."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    a, b = ((draw(*shape) * scale).clamp(-3e4, 3e4) for _ in "ab")  # their sum is finite in float16, too
    values = [a, b, 1 + draw(shape[-1]) / 4, draw(*shape), draw(*shape)]
    dtypes = [dtype, dtype, weight_dtype or dtype, dtype, dtype]
    return [value.to(kind).to(device) for value, kind in zip(values, dtypes, strict=True)]


def step(function, a, b, weight, dy, ds):
    a, b, weight = (x.detach().clone().requires_grad_() for x in (a, b, weight))
    y, s = function(a, b, weight, EPS)
    return [y.detach(), s.detach(), *torch.autograd.grad((y, s), (a, b, weight), (dy, ds))]


def torchs(a, b, weight, eps):
    s = a + b
    return F.rms_norm(s, weight.shape, weight, eps), s


def exact(a, b, weight, dy, ds):
    """In float64, from the rounded sum: rounding it is part of the operator."""
    s = (a + b).double()
    zero = torch.zeros_like(s)
    y, _, grad, _, dweight = step(torchs, s, zero, weight.double(), dy.double(), ds.double())
    return [y, s, grad, grad, dweight]


def largest(x):
    return x.abs().max().item() if x.numel() else 0.0


def worst(result, right):
    return largest(result.double() - right)


def rounding(inputs):
    """Of the terms of dx and of dweight, in float32: they may cancel, in a row of one element all but eps."""
    weight, dy, ds = (x.double() for x in inputs[2:])
    s = (inputs[0] + inputs[1]).double()
    rstd = torch.rsqrt(s.square().mean(-1, keepdim=True) + EPS)
    unit = torch.finfo(torch.float32).eps
    dx = 4 * unit * (largest(dy * weight * rstd) + largest(ds))
    return [0, 0, dx, dx, unit * largest((dy * s * rstd).abs().reshape(-1, len(weight)).sum(0))]


def assert_as_good_as_torch(function, *inputs):
    """The largest error is at most torch's, or half a unit in the last place of the largest value more; in float32,
    where statistics have no more digits than results, a unit."""
    right = exact(*inputs)
    if inputs[0].dtype == torch.float64:
        return torch.testing.assert_close(step(function, *inputs), right, rtol=1e-12, atol=1e-12)
    results = zip(step(function, *inputs), step(torchs, *inputs), right, rounding(inputs), strict=True)
    for i, (ours, theirs, true, more) in enumerate(results):
        assert ours.dtype == theirs.dtype == inputs[2 if i == 4 else 0].dtype
        assert ours.shape == true.shape
        unit = largest(true) * torch.finfo(ours.dtype).eps
        unit *= 1 if inputs[0].dtype == torch.float32 else 0.5
        assert worst(ours, true) <= worst(theirs, true) + unit + more
    assert torch.equal(step(function, *inputs)[1], inputs[0] + inputs[1])


# No whole vectors, one warp per row, several, two vectors per thread; then a cluster of 2 to 16 blocks, and too wide.
WIDTHS = [1, 7, 8, 100, 256, 264, 1000, 1024, 2056, 4096, 8192, 8200]
WIDE = [16384, 20000, 32776, 33000, 65536, 100001, 131072, 200000, 300000]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
def test_values_and_gradients(lib, dtype, device):
    for width in WIDTHS + WIDE * (device == "cuda"):
        for rows in (1, 5, 300 if width <= 1024 else 40 if device == "cuda" else 2):
            assert_as_good_as_torch(lib.add_rms_norm, *make((rows, width), dtype, device, seed=rows + width))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_weight_in_float32(lib, dtype, device):
    for width in [7, 264, 2056] + [16384, 100001] * (device == "cuda"):
        for rows in (1, 40):
            inputs = make((rows, width), dtype, device, weight_dtype=torch.float32)
            assert_as_good_as_torch(lib.add_rms_norm, *inputs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_autocast(lib):
    """Results have the dtype of torch's, whatever the inputs have."""
    for dtypes in itertools.product([torch.float32, torch.bfloat16], repeat=3):
        a, b, weight = (
            x.to(dtype).requires_grad_() for x, dtype in zip(make((5, 64), device="cuda")[:3], dtypes, strict=True)
        )
        with torch.autocast("cuda", torch.bfloat16):
            y, _ = lib.add_rms_norm(a, b, weight)
            torch.testing.assert_close(y, F.rms_norm(a.float() + b.float(), weight.shape, weight, EPS))
        y.sum().backward()
        assert (a.grad.dtype, b.grad.dtype, weight.grad.dtype) == dtypes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1e2, 1e4])
def test_scales(lib, scale, dtype, device):
    for width in (33, 512, 3000):
        assert_as_good_as_torch(lib.add_rms_norm, *make((20, width), dtype, device, scale))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_one_huge_element(lib, dtype, device):
    for width in (100, 1024):
        inputs = make((6, width), dtype, device)
        inputs[0][3, 5] = 3e4
        assert_as_good_as_torch(lib.add_rms_norm, *inputs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, "overflow"])
def test_not_finite(lib, value, dtype, device):
    """NaN and infinity are where torch has them, and the other rows are untouched."""
    for width in (100, 1024):
        a, b, weight, *_ = make((6, width), dtype, device)
        if value == "overflow":  # the sum is infinite
            a[2, 7] = b[2, 7] = torch.finfo(dtype).max
        else:
            a[2, 7] = value
        for ours, theirs in zip(lib.add_rms_norm(a, b, weight, EPS), torchs(a, b, weight, EPS), strict=True):
            assert torch.equal(ours.isnan(), theirs.isnan())
            assert torch.equal(ours.isinf(), theirs.isinf())
            assert ours[[0, 1, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
def test_shapes_and_strides(lib, device):
    for shape in ((16,), (0, 16), (2, 0, 16), (2, 3, 4, 16), (1, 1, 16)):
        assert_as_good_as_torch(lib.add_rms_norm, *make(shape, device=device))
    a, b, weight, dy, ds = make((12, 64), device=device)
    views = [
        (a.view(3, 4, 64).transpose(0, 1), b.view(4, 3, 64), weight, dy.view(4, 3, 64), ds.view(4, 3, 64)),
        (a[:, ::2], b[:, 1::2], weight[::2], dy[:, ::2], ds[:, 32:]),
        (a[:, 1:33], b[:, :32], weight[3:35], dy[:, 5:37], ds[:, 32:]),  # rows that start at odd addresses
        (a[:1].expand(12, 64), b, weight, dy[:, :1].expand(12, 64), ds),
    ]
    flat = torch.randn(12 * 64 + 1, device=device)
    views.append((flat[1:].view(12, 64), b, weight, dy, ds))  # contiguous, and not aligned
    for view in views:
        assert_as_good_as_torch(lib.add_rms_norm, *view)


def test_refusals(lib):
    a, w = torch.ones(2, 3), torch.ones(3)
    wrong = [
        ((a, torch.ones(2, 4), w), r"b has shape \[2, 4\], expected a's: \[2, 3\]"),
        ((a, torch.ones(3), w), r"b has shape \[3\]"),
        ((a, a, torch.ones(2)), r"weight has shape \[2\], expected a's last dimension: \[3\]"),
        ((a, a, torch.ones(1, 3)), r"weight has shape \[1, 3\]"),
        ((torch.ones(()), torch.ones(()), w), "no dimension"),
        ((torch.ones(2, 0), torch.ones(2, 0), torch.ones(0)), "last dimension is empty"),
        ((a, a.double(), w), "b and a differ in dtype"),
        ((a, a, w.half()), "weight and a differ in dtype"),
        ((a.int(), a.int(), w.int()), "expected float32, float64, float16 or bfloat16"),
    ]
    if torch.cuda.is_available():
        wrong += [((a.cuda(), a.cuda(), w), "weight and a differ in device")]
    for inputs, message in wrong:
        with pytest.raises(RuntimeError, match=message):
            lib.add_rms_norm(*inputs)
    backward = torch.ops.add_rms_norm.add_rms_norm_backward
    with pytest.raises(RuntimeError, match="rstd is not what"):
        backward(a, None, a, w, torch.ones(3))
    with pytest.raises(RuntimeError, match="dy has shape"):
        backward(torch.ones(2, 4), None, a, w, torch.ones(2))


@pytest.mark.parametrize("device", DEVICES)
def test_gradcheck(lib, device):
    def inputs():
        return [x.requires_grad_() for x in make((4, 2, 7), torch.float64, device)[:3]]

    assert torch.autograd.gradcheck(lib.add_rms_norm, inputs())
    for used in (0, 1):  # only y, only s: the other gradient is undefined
        assert torch.autograd.gradcheck(lambda a, b, w, used=used: lib.add_rms_norm(a, b, w)[used], inputs())
    a, b, weight = inputs()
    assert torch.autograd.gradcheck(lambda b: lib.add_rms_norm(a.detach(), b, weight.detach()), (b,))


def test_second_derivative_is_refused(lib):
    a, b, weight = (x.requires_grad_() for x in make((2, 8))[:3])
    (first,) = torch.autograd.grad(lib.add_rms_norm(a, b, weight)[0].square().sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_same_bits_again(lib, device):
    for width in (8, 1024, 1001):
        inputs = make((3000, width), torch.bfloat16, device)
        first, again = step(lib.add_rms_norm, *inputs), step(lib.add_rms_norm, *inputs)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_contract(lib, device):
    for dtype in (torch.float32, torch.bfloat16):
        a, b, weight, dy, ds = make((3, 4, 16), dtype, device)
        needs_grad = [x.clone().requires_grad_() for x in (a, b, weight)]
        torch.library.opcheck(torch.ops.add_rms_norm.add_rms_norm.default, (*needs_grad, EPS))
        torch.library.opcheck(
            torch.ops.add_rms_norm.add_rms_norm.default, (a.transpose(0, 1), b.view(4, 3, 16), weight, EPS)
        )
        _, s, rstd = torch.ops.add_rms_norm.add_rms_norm(a, b, weight, EPS)
        for more in (ds, None):
            torch.library.opcheck(torch.ops.add_rms_norm.add_rms_norm_backward.default, (dy, more, s, weight, rstd))


@pytest.mark.parametrize("device", DEVICES)
def test_vmap(lib, device):
    a, b, weight, *_ = make((3, 5, 8), device=device)
    weights = torch.stack([weight, 2 * weight, weight - 1])
    cases = [
        ((0, 0, None), (a, b, weight)),
        ((1, None, None), (a, b[:, 0], weight)),
        ((0, 0, 0), (a, b, weights)),
        ((None, None, 0), (a, b, weights)),
    ]
    for dims, inputs in cases:
        expected = torch.vmap(torchs, (*dims, None))(*inputs, EPS)
        torch.testing.assert_close(torch.vmap(lib.add_rms_norm, dims)(*inputs), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_vmap_of_the_gradient(lib, device):
    """Several gradients at once, as torch.autograd.functional.jacobian(vectorize=True) asks for."""
    a, b, weight, *_ = make((2, 3), torch.float64, device)
    ours, theirs = (
        torch.autograd.functional.jacobian(lambda *x, f=f: f(*x, EPS), (a, b, weight), vectorize=True)
        for f in (lib.add_rms_norm, torchs)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_compile_and_export(lib, device):
    def layer(a, b, weight):
        y, s = lib.add_rms_norm(torch.tanh(a), b, weight)
        return y * 2, s

    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    for rows in (4, 6, 9):  # the second one makes the graph dynamic
        a, b, weight, dy, ds = make((rows, 16), device=device)
        results = [step(lambda a, b, w, eps, f=f: f(a, b, w), a, b, weight, dy, ds) for f in (layer, compiled)]
        torch.testing.assert_close(results[1], results[0])

    class Layer(torch.nn.Module):
        def forward(self, a, b, weight):
            return layer(a, b, weight)

    rows = torch.export.Dim("rows")
    program = torch.export.export(Layer(), (a, b, weight), dynamic_shapes=({0: rows}, {0: rows}, None))
    a, b, *_ = make((11, 16), device=device)
    torch.testing.assert_close(program.module()(a, b, weight), layer(a, b, weight))
    assert "add_rms_norm.add_rms_norm" in str(program.graph)


def test_no_derivative_is_dropped(lib):
    """A forward derivative raises an error: torch would return zeros."""
    a, b, weight, *_ = make((2, 8))
    for compiled in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager")):
        for i in range(3):
            inputs = [a, b, weight]

            def function(x, i=i, inputs=inputs):
                return lib.add_rms_norm(*inputs[:i], x, *inputs[i + 1 :])[0]

            with pytest.raises(RuntimeError, match="no forward derivative"):
                compiled(lambda x, function=function: torch.func.jvp(function, (x,), (x,)))(inputs[i])
    with pytest.raises(RuntimeError, match="no forward derivative"):
        torch.func.jacfwd(lambda a: lib.add_rms_norm(a, b, weight)[0])(a)


def test_vmap_over_an_empty_batch(lib):
    a, weights = torch.ones(0, 5, 8), torch.ones(0, 8)
    for dims, inputs in (((0, 0, None), (a, a, torch.ones(8))), ((0, 0, 0), (a, a, weights))):
        assert [x.shape for x in torch.vmap(lib.add_rms_norm, dims)(*inputs)] == [a.shape] * 2
    backward = torch.ops.add_rms_norm.add_rms_norm_backward
    dx, dweight = torch.vmap(backward, (0, None, 0, None, 0))(a, None, a, torch.ones(8), torch.ones(0, 5))
    assert (dx.shape, dweight.shape) == (a.shape, weights.shape)


@pytest.mark.parametrize("size", ["mask", "item"])
def test_sizes_that_depend_on_data(lib, size):
    def function(x, y, mask, k, weight):
        if size == "mask":
            return lib.add_rms_norm(x[mask], y[~mask], weight)
        return lib.add_rms_norm(x[: k.item()], y[: k.item()], weight)

    x, y, weight, *_ = make((6, 8))
    inputs = x, y, torch.tensor([True, False] * 3), torch.tensor(3), weight
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*inputs), function(*inputs))


def test_fake_kernels_refuse_what_the_operator_refuses(lib):
    meta, a, weight = torch.device("meta"), torch.ones(2, 8), torch.ones(8)
    backward = torch.ops.add_rms_norm.add_rms_norm_backward
    for call in (
        lambda: lib.add_rms_norm(a, a, weight.to(meta)),  # a weight that was never materialized
        lambda: lib.add_rms_norm(a.to(meta), a, weight),
        lambda: backward(a, None, a, weight.to(meta), torch.ones(2)),
        lambda: backward(a, None, a, weight, torch.ones(2, device=meta)),
        lambda: lib.add_rms_norm(*[torch.ones(2, 0, device=meta)] * 2, torch.ones(0, device=meta)),
        lambda: lib.add_rms_norm(*[a.to(meta)] * 2, weight.to(meta).half()),
    ):
        with pytest.raises(RuntimeError, match="add_rms_norm"):
            call()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_streams_and_graphs(lib):
    a, b, weight, dy, ds = make((700, 1024), torch.bfloat16, "cuda")
    expected = step(lib.add_rms_norm, a, b, weight, dy, ds)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        late = a + 1  # another stream would read it too early
        y, s = lib.add_rms_norm(late - 1, b, weight, EPS)
    stream.synchronize()
    assert torch.equal(s, (a + 1) - 1 + b)
    graph, still = torch.cuda.CUDAGraph(), [x.clone() for x in (a, b, weight)]
    with torch.cuda.graph(graph):  # the second call reads what the first one writes: they overlap, and must wait
        y, s = lib.add_rms_norm(*still, EPS)
        y2, s2 = lib.add_rms_norm(y, s, still[2], EPS)
    for _ in range(20):
        y.zero_(), s.zero_()
        graph.replay()
        assert torch.equal(y, expected[0])
        assert all(
            torch.equal(x, z)
            for x, z in zip(lib.add_rms_norm(expected[0], expected[1], weight, EPS), (y2, s2), strict=True)
        )
