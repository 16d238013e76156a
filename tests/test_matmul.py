"""examples/matmul: the rungs of the ladder against float64, and values of gated_linear."""

import ctypes
import itertools
import re
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "matmul"


@pytest.fixture(scope="module")
def lib(lesson):
    return lesson("matmul", "gated_linear")


def make(lib, device, rows=5, k=24, h=16, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(rows + k + h)
    x, wg, wu = (torch.randn(size, k, generator=generator).to(device, dtype) for size in (rows, h, h))
    return x, lib.interleave(wg, wu) / max(k, 1) ** 0.5


def assert_close(found, right, error=0.01):
    """By the norm of the difference: single elements may be small differences of large numbers."""
    assert (found.shape, found.dtype) == (right.shape, right.dtype)
    assert (found.double() - right.double()).norm() <= error * right.double().norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_values(lib, device, dtype):
    sizes = [(5, 24, 16), (300, 1000, 136), (1, 8, 8), (130, 72, 328), (9, 27, 8), (0, 8, 8), (3, 0, 8)]
    sizes += [(16, 512, 1032), (200, 520, 1024), (40, 2048, 72), (700, 136, 2000)] * (device == "cuda")
    for rows, k, h in sizes:
        x, w = make(lib, device, rows, k, h, dtype)
        gates, ups = (x.double() @ w.double().view(h // 8, 2, 8, k)[:, i].reshape(h, k).t() for i in range(2))
        error = (2 if dtype.itemsize == 2 else 32) * torch.finfo(dtype).eps
        assert_close(lib.gated_linear(x, w), (gates * gates.sigmoid() * ups).to(dtype), error)
    x, w = make(lib, device, 12, dtype=dtype)
    y = lib.gated_linear(x, w)
    assert_close(lib.gated_linear(x.view(3, 2, 2, 24), w), y.view(3, 2, 2, 16))
    assert_close(lib.gated_linear(x[0], w), y[0])


def test_sizes_of_zero(lib, device):
    """Gradients, too: forward and backward, eager and by torch.func, are those of torch's own functions."""
    for shape, h in (((3, 0), 8), ((3, 8), 0), ((0, 8), 8), ((3, 0), 0), ((0,), 8), ((8,), 0), ((2, 0, 8), 8)):
        x, w = (torch.randn(each, device=device, requires_grad=True) for each in (shape, (2 * h, shape[-1])))
        found = []
        for function in (lib.gated_linear, lib.reference):
            y = function(x, w)
            found.append([y, *torch.autograd.grad(y.sum(), (x, w))])
            found[-1] += torch.func.grad(lambda *both, f=function: f(*both).sum(), (0, 1))(x, w)
        for ours, theirs in zip(*found, strict=True):
            assert ours.shape == theirs.shape
            assert torch.equal(ours, theirs)


def test_vmap(lib, device):
    """A batch of x, of w, of both, and an empty one; and a batch of vectors."""
    x, w = make(lib, device, 6)
    for n in (3, 0):
        xs, ws = (torch.stack([each, 2 * each, -each])[:n] for each in (x, w))
        for dims, (a, b) in (((0, None), (xs, w)), ((None, 0), (x, ws)), ((0, 0), (xs, ws))):
            found = torch.vmap(lib.gated_linear, dims)(a, b)
            assert found.shape == (n, 6, 16)
            for i in range(n):
                one = (each if dim is None else each[i] for each, dim in zip((a, b), dims, strict=True))
                assert_close(found[i], lib.gated_linear(*one))
    assert_close(torch.vmap(lib.gated_linear, (0, None))(x, w), lib.gated_linear(x, w))


def test_refuses(lib):
    x, _ = make(lib, "cpu")
    with pytest.raises(ValueError, match="expected"):
        lib.interleave(x, x)


def test_rungs(nvcc, lib, lesson):
    """Within twice torch.matmul's own error at random sizes; or refused, for want of a Hopper GPU or by TMA."""
    torch.manual_seed(0)
    ladder, sizes = lesson("matmul", "ladder"), torch.randint(1, 700, (20, 3)).tolist()
    is_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    c, a, b = (torch.randn(size, dtype=torch.bfloat16) for size in ((5, 3), (5, 27), (3, 27)))
    assert ladder.load()(0, *(ctypes.c_void_p(x.data_ptr()) for x in (c, a, b)), 5, 3, 27, None) is None
    assert_close(c, a @ b.t())
    assert is_hopper or b"(Hopper)" in ladder.load()(7, *[None] * 3, 1, 16, 8, None)
    for m, n, k in (sizes + [[8 * each for each in size] for size in sizes]) * torch.cuda.is_available():
        a, b = (torch.randn(size, k, device="cuda", dtype=torch.bfloat16) for size in (m, n))
        for rung in ladder.RUNGS:
            if (rung > 3 and k % 8) or (rung > 4 and not is_hopper) or (rung == 7 and n % 8):
                with pytest.raises(RuntimeError, match=r"TMA needs|cp.async needs|\(Hopper\)"):
                    ladder.multiply(rung, a, b)
            else:
                assert ladder.relative_error(ladder.multiply(rung, a, b), a, b) <= 2, (rung, m, n, k)


class Plan(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int)
        for name in ("width", "cluster_m", "cluster_n", "split", "steps", "clusters", "high", "wide")
    ]


def test_rung_7_with_any_plan(lib, lesson):
    """Each width, as one block, in both kinds of pairs, and with K split; twice, and the same bits."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    torch.manual_seed(0)
    ladder = lesson("matmul", "ladder")
    launch = ladder.load(function="launch_with_plan")
    widths = [int(x) for x in re.search(r"kWidths\[\] = {([\d, ]+)}", (FOLDER / "plan.h").read_text())[1].split(", ")]
    pairs = (1, 1), (2, 1), (1, 2)
    for (index, width), (cluster_m, cluster_n), split in itertools.product(enumerate(widths), pairs, (1, 2, 3, 4)):
        m, n, k = (torch.randint(low, high, ()).item() for low, high in ((1, 600), (1, 80), (33, 100)))
        n, k = 8 * n, 8 * k
        steps, high, wide = -(-k // 64), -(-n // (128 * cluster_m)), -(-m // (width * cluster_n))
        part = -(-steps // split)
        if (split - 1) * part >= steps:
            continue
        clusters = high * wide if split > 1 else -(-high * wide // 2)
        plan = Plan(index, cluster_m, cluster_n, split, part, clusters, high, wide)
        a, b = (torch.randn(size, k, device="cuda", dtype=torch.bfloat16) for size in (m, n))
        found = [a.new_full((m, n), float("nan")) for _ in range(2)]
        for c in found:
            ladder.operators.launch(launch, ctypes.byref(plan), c, a, b, m, n, k)
        assert ladder.relative_error(found[0], a, b) <= 2, (width, cluster_m, cluster_n, split, m, n, k)
        assert torch.equal(*found)
