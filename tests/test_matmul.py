"""examples/matmul: the rungs of the ladder against float64, and gated_linear under everything that torch asks."""

import ctypes
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "matmul"
everywhere = pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
need_nvcc = pytest.mark.skipif(not toolchain.find_nvcc(), reason="needs nvcc")


@pytest.fixture(scope="module")
def lib():
    os.environ["PATH"] = toolchain.tool_path()  # ninja
    sys.path.insert(0, str(FOLDER))
    cpp_extension.CUDA_HOME = torch.version.cuda and toolchain.environment().get("CUDA_HOME")
    return importlib.import_module("gated_linear")


def make(lib, device, rows=5, k=24, h=16, dtype=torch.bfloat16, is_leaf=False):
    generator = torch.Generator().manual_seed(rows + k + h)
    x, wg, wu = (torch.randn(size, k, generator=generator).to(device, dtype) for size in (rows, h, h))
    return x.requires_grad_(is_leaf), (lib.interleave(wg, wu) / max(k, 1) ** 0.5).requires_grad_(is_leaf)


def assert_close(found, right, error=0.01):
    """By the norm of the difference: single elements may be small differences of large numbers."""
    for one, other in zip(found, right, strict=True) if isinstance(found, tuple) else [(found, right)]:
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert (one.double() - other.double()).norm() <= error * other.double().norm()


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_values(lib, device, dtype):
    for rows, k, h in [(5, 24, 16), (300, 1000, 136), (1, 8, 8), (130, 72, 328), (9, 27, 8), (0, 8, 8), (3, 0, 8)]:
        x, w = make(lib, device, rows, k, h, dtype)
        gates, ups = (x.double() @ w.double().view(h // 8, 2, 8, k)[:, i].reshape(h, k).t() for i in range(2))
        error = (2 if dtype.itemsize == 2 else 32) * torch.finfo(dtype).eps
        assert_close(lib.gated_linear(x, w), (gates * gates.sigmoid() * ups).to(dtype), error)
    x, w = make(lib, device, 12, dtype=dtype)
    y = lib.gated_linear(x, w)
    wide = torch.zeros(12, 27, dtype=x.dtype, device=device)
    wide[:, 3:] = x  # rows that TMA cannot read
    for same in (wide[:, 3:], torch.cat((x.new_zeros(1), x.flatten()))[1:].view(12, 24), x.t().contiguous().t()):
        assert_close(lib.gated_linear(same, w.t().contiguous().t()), y)
    assert_close(lib.gated_linear(x.view(3, 2, 2, 24), w), y.view(3, 2, 2, 16))
    assert_close(lib.gated_linear(x[0], w), y[0])


@everywhere
def test_gradients(lib, device):
    inputs, both = make(lib, device, 2, 5, 8, torch.float64, True), (lib.gated_linear, lib.reference)
    assert torch.autograd.gradcheck(lib.gated_linear, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lib.gated_linear, inputs)
    inputs = make(lib, device, 130, 72, 328, is_leaf=True)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    right = torch.autograd.grad(lib.reference(*wide).mul(2).sin().sum(), wide)
    ours, theirs = (torch.autograd.grad(f(*inputs).mul_(2).sin().sum(), inputs) for f in both)
    for our, their, exact in zip(ours, theirs, right, strict=True):  # bfloat16: compare with torch's own error
        assert (our - exact).norm() <= 2 * (their - exact).norm()


@everywhere
def test_asked_by_torch(lib, device):
    x, w = make(lib, device)
    op, y = torch.ops.gated_linear.gated_linear.default, lib.gated_linear(x, w)
    xs, ws = torch.stack((x, -x), 1), torch.stack((w, -w))
    for dims, args in (((1, None), (xs, w)), ((None, 0), (x, ws)), ((1, 0), (xs, ws))):
        assert_close(*(torch.vmap(f, dims)(*args) for f in (op, lib.reference)))
    with torch.autocast(device, torch.bfloat16):
        assert torch.equal(lib.gated_linear(x.float(), w), y)
        assert lib.gated_linear(x.double(), w.double()).dtype == torch.float64
    compiled = torch.compile(op, fullgraph=True, dynamic=True)
    for rows in (5, 2, 4):
        assert_close(compiled(x[:rows], w), y[:rows])
    leaves, module = make(lib, device, is_leaf=True), torch.nn.Module()
    assert_close(*(torch.autograd.grad(f(*leaves).sum(), leaves) for f in (compiled, op)))
    module.forward = lib.gated_linear
    exported = torch.export.export(module, (x, w), dynamic_shapes=({0: torch.export.Dim("rows")}, None))
    assert_close(exported.module()(x[:3], w), y[:3])


def test_refuses(lib):
    x, _ = make(lib, "cpu")
    with pytest.raises(ValueError, match="expected"):
        lib.interleave(x, x)


@need_nvcc
@pytest.mark.parametrize("arch", ["80", "90a", "100"])
def test_compiles_without_warning(arch, tmp_path):
    """No spilled register, and no wgmma that ptxas has serialized (C7510)."""
    flags = ["-std=c++17", "-O3", f"-I{FOLDER.parent}", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    flags += ["-Werror=all-warnings", "-Xptxas=-v,--warning-as-error", "-Xcompiler=-Wall,-Werror"]
    flags += ["-cubin", "-o", tmp_path / "cubin"]
    for source in ("ladder.cu", "gated_linear.cu"):
        command = [toolchain.find_nvcc(), *flags, FOLDER / source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "(C75" in done.stderr) == (0, False), done.stderr
        assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", done.stderr)) == {"0"}


@need_nvcc
def test_rungs(lib):
    """Within twice torch.matmul's own error at random sizes; or refused, for want of a Hopper GPU or by TMA."""
    torch.manual_seed(0)
    ladder, sizes = importlib.import_module("ladder"), torch.randint(1, 700, (20, 3)).tolist()
    is_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    c, a, b = (torch.randn(size, dtype=torch.bfloat16) for size in ((5, 3), (5, 27), (3, 27)))
    assert lib.load("ladder")(0, *(ctypes.c_void_p(x.data_ptr()) for x in (c, a, b)), 5, 3, 27, None) is None
    assert_close(c, a @ b.t())
    assert is_hopper or b"(Hopper)" in lib.load("gated_linear")(*[None] * 3, 1, 16, 8, None)
    for m, n, k in (sizes + [[8 * each for each in size] for size in sizes]) * torch.cuda.is_available():
        a, b = (torch.randn(size, k, device="cuda", dtype=torch.bfloat16) for size in (m, n))
        for rung in ladder.RUNGS:
            if (rung > 3 and k % 8) or (rung > 4 and not is_hopper) or (rung == 7 and n % 8):
                with pytest.raises(RuntimeError, match=r"TMA needs|cp.async needs|\(Hopper\)"):
                    ladder.multiply(rung, a, b)
            else:
                assert ladder.relative_error(rung, a, b) <= 2, (rung, m, n, k)


@pytest.mark.thorough
@pytest.mark.anywhere
def test_programs(run, tmp_path):
    assert torch.cuda.is_available() or "needs a GPU" in run(FOLDER / "bench.py", status=1).stderr
    run(FOLDER / "ladder.py", "--from", "docs/results/h200-matmul.json", "--plot", tmp_path / "x.svg")
