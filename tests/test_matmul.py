"""examples/matmul: the rungs of the ladder against float64, and gated_linear under everything that torch asks."""

import importlib
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import cpp_extension

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "matmul"
everywhere = pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
need_nvcc = pytest.mark.skipif(not toolchain.find_nvcc(), reason="needs nvcc")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def lib():
    os.environ["PATH"] = toolchain.tool_path()  # ninja
    sys.path.insert(0, str(FOLDER))
    cpp_extension.CUDA_HOME = torch.version.cuda and toolchain.environment().get("CUDA_HOME")
    return importlib.import_module("gated_linear")


def make(lib, rows=5, k=24, h=16, dtype=torch.bfloat16, device="cpu"):
    generator = torch.Generator().manual_seed(rows + k + h)
    x, wg, wu = (torch.randn(size, k, generator=generator).to(device, dtype) for size in (rows, h, h))
    wg, wu = (each / max(k, 1) ** 0.5 for each in (wg, wu))
    return x, wg, wu, lib.interleave(wg, wu)


def assert_close(found, right, error=0.01):
    """The norm of the difference: one element may be the small difference of large numbers."""
    for one, other in zip(found, right, strict=True) if isinstance(found, tuple) else [(found, right)]:
        assert one.shape == other.shape
        assert (one.double() - other.double()).norm() <= error * other.double().norm()


@everywhere
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(lib, device, dtype):
    for rows, k, h in [(5, 24, 16), (300, 1000, 136), (1, 8, 8), (130, 72, 328), (9, 27, 8), (0, 8, 8), (3, 0, 8)]:
        x, wg, wu, w = make(lib, rows, k, h, dtype, device)
        gates, ups = (x.double() @ each.double().t() for each in (wg, wu))
        y = lib.gated_linear(x, w)
        assert y.dtype == dtype
        assert_close(y, nn.functional.silu(gates) * ups, (2 if dtype.itemsize == 2 else 32) * torch.finfo(dtype).eps)


@everywhere
def test_shapes_and_strides(lib, device):
    x, *_, w = make(lib, 12, device=device)
    y = lib.gated_linear(x, w)
    wide = torch.zeros(12, 27, dtype=x.dtype, device=device)
    wide[:, 3:] = x  # rows that TMA cannot read
    for same in (wide[:, 3:], torch.cat((x.new_zeros(1), x.flatten()))[1:].view(12, 24), x.t().contiguous().t()):
        assert_close(lib.gated_linear(same, w.t().contiguous().t()), y)
    assert_close(lib.gated_linear(x.view(3, 2, 2, 24), w), y.view(3, 2, 2, 16))
    assert_close(lib.gated_linear(x[0], w), y[0])


@everywhere
def test_gradients(lib, device):
    op, inputs = torch.ops.gated_linear.gated_linear, make(lib, 2, 5, 8, torch.float64, device)[::3]
    inputs = [each.requires_grad_() for each in inputs]
    assert torch.autograd.gradcheck(op, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(op, inputs)
    inputs = [each.requires_grad_() for each in make(lib, 130, 72, 328, device=device)[::3]]
    dy = torch.randn(130, 328, device=device).to(torch.bfloat16)
    assert_close(*(torch.autograd.grad(call(*inputs), inputs, dy) for call in (op, lib.reference)))
    inputs = make(lib, device=device)[::3]
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        losses = (lambda x, w, call=call: call(x, w).float().square().sum() for call in (op, lib.reference))
        assert_close(*(transform(loss, (0, 1))(*inputs) for loss in losses))


@everywhere
def test_asked_by_torch(lib, device):
    x, *_, w = make(lib, device=device)
    op, y = torch.ops.gated_linear.gated_linear, lib.gated_linear(x, w)
    for grad in (False, True):
        torch.library.opcheck(op.default, [each.clone().requires_grad_(grad) for each in (x, w)])
    xs, ws = torch.stack((x, -x), 1), torch.stack((w, -w))
    for dims, args in (((1, None), (xs, w)), ((None, 0), (x, ws)), ((1, 0), (xs, ws))):
        assert_close(torch.vmap(op, dims)(*args), torch.vmap(lib.reference, dims)(*args))
    with torch.autocast(device, torch.bfloat16):
        assert torch.equal(lib.gated_linear(x.float(), w), y)
        assert lib.gated_linear(x.double(), w.double()).dtype == torch.float64
    compiled = torch.compile(op, fullgraph=True, dynamic=True)
    for rows in (5, 2, 4):
        assert_close(compiled(x[:rows], w), y[:rows])

    class Module(nn.Module):
        def forward(self, x, w):
            return op(x, w)

    shapes = {"x": {0: torch.export.Dim("rows")}, "w": None}
    assert_close(torch.export.export(Module(), (x, w), dynamic_shapes=shapes).module()(x[:3], w), y[:3])
    x.requires_grad_()
    assert_close(*(torch.autograd.grad(f(x, w).sum(), x) for f in (compiled, op)))


def test_refuses(lib):
    x, wg, _, w = make(lib)
    for bad in ((x[:, 1:], w), (x, w[:8]), (x, w.float()), (x.int(), w.int()), (x[0, 0], w), (x, w[0])):
        for call in (lib.gated_linear, torch.compile(lib.gated_linear, backend="eager")):
            with pytest.raises(RuntimeError, match=r"gated_linear: x is.* expected"):
                call(*bad)
    with pytest.raises(ValueError, match="expected"):
        lib.interleave(wg[:3], wg[:3])


@need_nvcc
@pytest.mark.parametrize("arch", ["80", "90a", "100"])
def test_compiles_without_warning(arch, tmp_path):
    """No spilled register, no wgmma that ptxas has serialized (C7510), tensor cores in the machine code."""
    flags = ["-std=c++17", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Werror=all-warnings"]
    flags += ["-Xptxas=-v,--warning-as-error", "-Xcompiler=-Wall,-Werror", "-cubin", "-o", tmp_path / "cubin"]
    for source in ("ladder.cu", "gated_linear.cu"):
        command = [toolchain.find_nvcc(), *flags, FOLDER / source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "(C75" not in done.stderr, done.stderr
        assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", done.stderr)) == {"0"}


@pytest.mark.skipif(not torch.cuda.is_available() or not toolchain.find_nvcc(), reason="needs a GPU and nvcc")
def test_rungs(lib):
    """Each within twice torch.matmul's own error, at random sizes; what TMA cannot read is refused in one line."""
    ladder, random_sizes = importlib.import_module("ladder"), random.Random(0)
    for turn in range(40):
        m, n, k = (random_sizes.randint(1, 700) * (8 if turn % 2 else 1) for _ in "mnk")
        a, b = (torch.randn(size, k, device="cuda", dtype=torch.bfloat16) for size in (m, n))
        for rung in ladder.RUNGS:
            if rung > 4 and (torch.cuda.get_device_capability()[0] != 9 or k % 8 or (rung == 7 and n % 8)):
                with pytest.raises(RuntimeError, match=r"TMA needs|compute capability"):
                    ladder.multiply(rung, a, b)
            else:
                assert ladder.relative_error(rung, a, b) <= 2, (rung, m, n, k)


def test_programs(run, tmp_path):
    assert torch.cuda.is_available() or "needs a GPU" in run(FOLDER / "bench.py", status=1).stderr
    run(FOLDER / "ladder.py", "--from", "docs/results/h200-matmul.json", "--plot", tmp_path / "x.svg")
