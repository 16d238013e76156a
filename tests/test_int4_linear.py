"""examples/int4_linear: packed weights and products, against float64. The layer is in test_int4_layer.py."""

import ctypes
import math
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from int4_calls import Int4Call, Plan

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "int4_linear"
everywhere = pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
FIRST_WGMMA, SHAPES = 6, 45  # of kShapes in plan.h
half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(scope="module")
def lib(lesson):
    return lesson("int4_linear")


def make(lib, n=192, k=256, batch=3, dtype=torch.bfloat16, device="cpu"):
    """x, packed, scale, zero, bias."""
    generator = torch.Generator().manual_seed(n + k + batch)
    weight, x, bias = (torch.randn(shape, generator=generator) for shape in ((n, k), (batch, k), (n,)))
    weight = (weight * 0.1 + 0.02).to(device, dtype)
    return x.to(device, dtype), *lib.quantize(weight), bias.to(device, dtype)


@everywhere
@half
def test_quantize_rounds_to_nearest(lib, dtype, device):
    weight = (torch.randn(128, 384) * torch.logspace(-3, 1, 128)[:, None]).to(device, dtype)
    weight[3] = 0
    packed, scale, zero = lib.quantize(weight)
    step = scale.t().double().repeat_interleave(128, 1)
    error = (lib.dequantize(packed, scale, zero).double() - weight.double()).abs()
    assert (error <= step * 0.51 + weight.double().abs() * 2 * torch.finfo(dtype).eps).all()
    assert torch.equal(lib.dequantize(packed.cpu(), scale.cpu(), zero.cpu()), lib.dequantize(packed, scale, zero).cpu())


@everywhere
@half
def test_values(lib, dtype, device):
    """Within a unit in the last place of a row's largest value; on a GPU for each shape of the kernel, and matmul."""
    sizes = [(192, 384), (64, 64), (128, 576)] + [(6400, 320), (12736, 128), (25408, 64)] * (device == "cuda")
    for n, k in sizes:
        for batch in (1, 3, 8, 9, 16, 17, 33, 61, 65, 130, 190, 300) if device == "cuda" else (1, 3):
            x, *weight, bias = make(lib, n, k, batch, dtype, device)
            for more in (None, bias):
                right = F.linear(x.double(), lib.dequantize(*weight).double(), None if more is None else more.double())
                y = lib.int4_linear(x, *weight, more)
                worst = (y.double() - right).abs().amax(1) / right.abs().amax(1)
                assert worst.max() <= torch.finfo(dtype).eps, (n, k, batch)
                assert torch.equal(y, lib.int4_linear(x, *weight, more))


@everywhere
def test_shapes(lib, device):
    x, *weight, bias = make(lib, batch=12, device=device)
    y = lib.int4_linear(x, *weight, bias)
    assert torch.equal(lib.int4_linear(x.view(3, 2, 2, 256), *weight, bias), y.view(3, 2, 2, 192))
    torch.testing.assert_close(lib.int4_linear(x[0], *weight, bias), y[0])
    assert lib.int4_linear(x[:0], *weight).shape == (0, 192)


@everywhere
def test_the_weight_has_no_gradient(lib, device):
    x, *weight, _ = make(lib, device=device)
    for call in (lib.dequantize, partial(lib.int4_linear, x)):
        with pytest.raises(RuntimeError, match="4-bit weight has none"):
            call(weight[0], weight[1].clone().requires_grad_(), weight[2])
        with pytest.raises(RuntimeError, match="4-bit weight has none"):  # not a silent zero
            torch.func.jvp(partial(call, weight[0], zero=weight[2]), (weight[1],), (weight[1],))


@everywhere
@half
def test_quantize_extremes(lib, dtype, device):
    """A float16 scale may be subnormal; and a finite weight stays finite when it is rounded up."""
    for std in (1, 1e-4, 3e-5, 1e-5):
        weight = (torch.randn(64, 256) * std).to(device, dtype)
        found = lib.dequantize(*lib.quantize(weight)).double()
        assert (found - weight.double()).norm() / weight.double().norm() < 0.12
    largest = torch.finfo(dtype).max
    weight = torch.randn(64, 256).to(device, dtype)
    weight[0, 0], weight[1, 1], weight[2, :2] = largest, -largest, torch.tensor([largest, -largest], dtype=dtype)
    weight[3] = largest
    found = lib.dequantize(*lib.quantize(weight)).double()
    assert (found - weight.double()).abs().max() < largest / 13
    assert (found[[0, 3], 0] / largest).min() > 0.98


@everywhere
@half
def test_pack(lib, dtype, device):
    codes, zero = (torch.randint(0, 16, shape, device=device) for shape in ((192, 320), (192, 3)))
    scale = torch.rand(192, 3, device=device).to(dtype)
    packed, *affine = lib.pack(codes, scale, zero)
    right = (codes - zero.repeat_interleave(128, 1)[:, :320]) * scale.double().repeat_interleave(128, 1)[:, :320]
    assert torch.equal(lib.dequantize(packed, *affine), right.to(dtype))
    for wrong in (16, 17, -1, 255, 2.75, math.nan):
        for i, what in enumerate(("code", "zero")):
            both = [x.double() if isinstance(wrong, float) else x.clone() for x in (codes, zero)]
            both[i][3, 1] = wrong
            with pytest.raises(ValueError, match=f"a {what} is {wrong}, expected a whole number, 0 to 15"):
                lib.pack(both[0], scale, both[1])
    with pytest.raises(ValueError, match=r"scale is \[192, 2\], expected \[192, 3\]"):
        lib.pack(codes, scale[:, :2], zero)
    with pytest.raises(ValueError, match="NaN"):
        lib.quantize(torch.full((64, 128), torch.nan, dtype=dtype, device=device))
    for shape, wrong in (((100, 128), dtype), ((64, 96), dtype), ((64, 128), torch.float32)):
        with pytest.raises(ValueError, match="expected"):
            lib.quantize(torch.zeros(shape, dtype=wrong))


@everywhere
@half
def test_any_zero(lib, dtype, device):
    """One that did not come from pack(), such as GPTQ's, which may be 16, gives what the formula says, rounded once."""
    _, packed, scale, zero, _ = make(lib, 256, 128, dtype=dtype, device=device)
    zero = torch.arange(256, device=device).byte()[None]
    codes = (lib.dequantize(packed, torch.ones_like(scale), torch.zeros_like(zero))).double()
    right = (codes - zero.t()) * scale.t().double()
    right = right.to(dtype)
    assert torch.equal(lib.dequantize(packed, scale, zero), right)
    for batch in (1, 12, 32, 40, 128):  # x is the identity, so that y is some columns of the weight
        x = torch.eye(batch, 128, dtype=dtype, device=device)
        assert torch.equal(lib.int4_linear(x, packed, scale, zero), right[:, :batch].t()), batch


@everywhere
@half
def test_infinite_input(lib, dtype, device):
    """As F.linear with the same weight: infinity, or NaN where a weight is 0; other rows of x do not notice."""
    for n, k in [(192, 256), (6400, 1024)] if device == "cuda" else [(192, 256)]:
        for batch in (1, 2, 8, 12, 20, 64, 70, 130, 300) if device == "cuda" else (1, 2):
            x, *weight, bias = make(lib, n, k, batch, dtype, device)
            y = lib.int4_linear(x, *weight, bias)
            x[0, 7], x[-1, 200] = torch.inf, -torch.inf
            x[batch // 2, 9] = torch.finfo(dtype).max / 2  # times 16 + code it would be too large
            dense = lib.dequantize(*weight)
            right = F.linear(x.double(), dense.double(), bias.double()).to(dtype)
            found = lib.int4_linear(x, *weight, bias)
            changed = sorted({0, batch // 2, batch - 1})
            assert torch.equal(found.isnan(), right.isnan()), (n, k, batch)
            for row in changed:
                largest = right[row][right[row].isfinite()].abs().max().item() if right[row].isfinite().any() else 0
                atol = max(0.1, 1e-4 * largest)  # it decides to which bit float32 sums are right
                torch.testing.assert_close(found[row], right[row], equal_nan=True, rtol=0.02, atol=atol)
            same = [row for row in range(batch) if row not in changed]
            torch.testing.assert_close(found[same], y[same], rtol=0.02, atol=0.1)


@everywhere
def test_before_and_after_a_norm(lib, device):
    """Two products with a norm between them, whose work they share: within one kernel each for 1 to 8 rows, and in
    kernels of their own for more. Sizes: with blocks that share K, with several tiles, half a group."""
    sizes = [(256, 192, 320)] + [(4096, 4096, 6400), (14336, 2048, 34048), (1088, 6400, 192)] * (device == "cuda")
    for k, n, n2 in sizes:
        for batch in (1, 2, 3, 7, 8, 9, 40) if device == "cuda" else (1, 3):
            x, *weight, bias = make(lib, n, k, batch, device=device)
            residual, *second, bias2 = make(lib, n2, n, batch, device=device)
            norm = torch.linspace(0.5, 1.5, n, device=device).bfloat16()
            s, weighted, squares = lib.linear_before_norm(x, *weight, bias, residual, norm)
            right = residual.double() + F.linear(x.double(), lib.dequantize(*weight).double(), bias.double())
            assert ((s.double() - right).abs().amax(1) <= 0.01 * right.abs().amax(1)).all(), (k, n, batch)
            assert torch.equal(weighted, (s.float() * norm.float()).bfloat16())
            right = s.double().square().unflatten(-1, (-1, 16)).sum(-1)
            torch.testing.assert_close(squares.double(), right, rtol=1e-6, atol=0)
            normed = F.rms_norm(s.double(), [n], norm.double(), 1e-5)
            right = F.linear(normed, lib.dequantize(*second).double(), bias2.double())
            for gated in (False, True):
                y = lib.linear_after_norm(weighted, squares, 1e-5, *second, bias2, gated)
                if gated:
                    right = F.silu(right[:, 0::2]) * right[:, 1::2]
                assert (y.double() - right).norm() <= 0.006 * right.norm(), (n, n2, batch, gated)
                assert torch.equal(y, lib.linear_after_norm(weighted, squares, 1e-5, *second, bias2, gated))


@everywhere
def test_norms_of_any_shape(lib, device):
    """Rows apart in memory, more dimensions, none; an infinity stays in its row."""
    x, *weight, bias = make(lib, batch=6, device=device)
    residual, norm = torch.randn(6, 192, device=device).bfloat16(), torch.rand(192, device=device).bfloat16()
    found = lib.linear_before_norm(x, *weight, bias, residual, norm)
    strided = torch.stack((x, x), -1)[..., 0].view(3, 2, 256)
    others = lib.linear_before_norm(strided, *weight, bias, residual.view(3, 2, 192), norm)
    assert all(torch.equal(each.flatten(0, 1), right) for each, right in zip(others, found, strict=True))
    none = lib.linear_before_norm(x[:0], *weight, None, residual[:0], norm)
    assert [each.shape for each in none] == [(0, 192), (0, 192), (0, 12)]
    x[2, 5] = torch.inf
    others = lib.linear_before_norm(x, *weight, bias, residual, norm)
    rows = [0, 1, 3, 4, 5]
    for each, right in zip(others, found, strict=True):
        assert not each[2].isfinite().all()
        torch.testing.assert_close(each[rows], right[rows], rtol=0.02, atol=0.1)
    with pytest.raises(RuntimeError, match="scale is Half, expected BFloat16"):
        lib.linear_before_norm(
            *(each.half() if each.is_floating_point() else each for each in (x, *weight, bias)), x, x
        )


def launch_plan(lib, y, x, packed, scale, zero, bias, plan, sizes, gated=False):
    """The launcher, for a plan that make_plan would not choose: shape, splits, unsplit tiles. Its error, or None."""
    launch = ctypes.CDLL(lib.build()).launch_plan
    launch.restype = ctypes.c_char_p
    at = [None if each is None else each.data_ptr() for each in (packed, scale, zero, y, x, bias)]
    n, k, batch = sizes
    call = Int4Call(*at[:3], n, k, scale.dtype == torch.float16, gated, *at[3:], batch)
    return launch(ctypes.byref(call), ctypes.byref(Plan(*plan, batch, 0)), None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@half
def test_every_shape(lib, dtype):
    """All of kShapes with up to 8 blocks along K, also where a block has no K, and a tile no more rows."""
    shapes = range(SHAPES) if torch.cuda.get_device_capability() == (9, 0) else range(1)
    sizes = [(64, 64, 1), (192, 576, 9), (320, 1088, 40), (512, 1024, 130), (576, 704, 300), (192, 4096, 257)]
    for n, k, batch in [*sizes, (17088, 192, 20)]:
        x, *weight, bias = make(lib, n, k, batch, dtype, "cuda")
        right = F.linear(x.double(), lib.dequantize(*weight).double(), bias.double())
        for shape in shapes:
            for splits, unsplit in ((1, 0), (2, 0), (3, 0), (5, 0), (8, 0), (3, 1)) if shape else [(1, 0)]:
                ys = [torch.full((batch, n), torch.nan, dtype=dtype, device="cuda") for _ in range(2)]
                for y in ys:
                    plan = (shape, splits, unsplit * (shape >= FIRST_WGMMA and n > 10000))
                    assert launch_plan(lib, y, x, *weight, bias, plan, (n, k, batch)) is None
                worst = (ys[0].double() - right).abs().amax(1) / right.abs().amax(1)
                assert worst.max() <= torch.finfo(dtype).eps, (n, k, batch, shape, splits, unsplit)
                assert torch.equal(*ys), (n, k, batch, shape, splits, unsplit)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_failed_launch_leaves_no_error(lib):
    """A failure is reported once: not by torch, too, at its next launch."""
    x = torch.zeros(16, device="cuda")
    assert b"invalid" in launch_plan(lib, x, x, x, x, x, None, (0, 1, 0), (0, 128, 1))  # no rows of W: no blocks
    assert (x + 1).sum().item() == 16  # torch asks for the last error at each of its launches


@pytest.mark.skipif(not toolchain.find_nvcc(), reason="needs nvcc")
def test_ladder(lib, lesson, tmp_path):
    """Its reference agrees with torch. On a GPU so does each rung, at sizes of few and of many tiles."""
    command = [toolchain.find_nvcc(), "-std=c++17", "-shared", "-Xcompiler=-fPIC", f"-I{FOLDER.parent}"]
    command += ["-gencode=arch=compute_90a,code=sm_90a", FOLDER / "ladder.cu", "-o", tmp_path / "ladder.so"]
    subprocess.run(command, check=True)
    ladder = lesson("int4_linear", "ladder")
    launch = ctypes.CDLL(str(tmp_path / "ladder.so")).launch_ladder
    launch.restype = ctypes.c_char_p
    for n, k, m in ((64, 128, 1), (128, 384, 3), (384, 1280, 9), (256, 2176, 150)):
        x = torch.randn(m, k).bfloat16()
        plain, packed = ladder.make_weights(n, k, "cpu")
        right = F.linear(x.double(), lib.dequantize(*packed).double())
        for rung in [0, *(ladder.RUNGS if torch.cuda.is_available() and (n % 128 == 0) else [])]:
            device = "cuda" if rung else "cpu"
            y = torch.full((m, n), torch.nan, dtype=x.dtype, device=device)
            weight = plain if rung in (0, *ladder.ROW_BY_ROW) else packed
            tensors = [y, *(each.to(device) for each in (x, *weight))]
            pointers = [ctypes.c_void_p(each.data_ptr()) for each in tensors]
            assert launch(rung, *pointers, m, n, k, None) is None
            torch.testing.assert_close(y.cpu().double(), right, rtol=0, atol=0.01 * right.abs().max().item())
    assert b"expected" in launch(1, *[None] * 5, 1, 32, 128, None)
