"""examples/int4_linear: values against float64, the module, and everything that torch asks of an operator."""

import ctypes
import importlib
import math
import os
import re
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.utils import cpp_extension

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "int4_linear"
everywhere = pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
FIRST_WGMMA, SHAPES = 6, 23  # of kShapes in plan.h
half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(scope="module")
def lib():
    os.environ["PATH"] = toolchain.tool_path()  # ninja
    sys.path.insert(0, str(FOLDER))
    cpp_extension.CUDA_HOME = torch.version.cuda and toolchain.environment().get("CUDA_HOME")
    module = importlib.import_module("int4_linear")
    module.build()
    return module


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
def test_shapes_and_strides(lib, device):
    x, *weight, bias = make(lib, batch=12, device=device)
    y = lib.int4_linear(x, *weight, bias)
    wide = torch.zeros(12, 259, dtype=x.dtype, device=device)
    wide[:, 3:] = x  # rows that 16-byte loads cannot read
    odd = torch.cat((x.new_zeros(1), x.flatten()))[1:].view(12, 256)
    for same in (wide[:, 3:], odd, x.t().contiguous().t()):
        assert torch.equal(lib.int4_linear(same, *weight, bias), y)
    assert torch.equal(lib.int4_linear(x.view(3, 2, 2, 256), *weight, bias), y.view(3, 2, 2, 192))
    torch.testing.assert_close(lib.int4_linear(x[0], *weight, bias), y[0])
    assert lib.int4_linear(x[:0], *weight).shape == (0, 192)


@everywhere
@pytest.mark.parametrize("rows", [(), (3,)])
def test_gradient(lib, rows, device):
    x, *weight, bias = make(lib, device=device)
    x, bias = x[0].expand(*rows, -1).clone().requires_grad_(), bias.requires_grad_()
    dy = torch.randn(*rows, 192, device=device).to(x.dtype)
    right = torch.autograd.grad(F.linear(x, lib.dequantize(*weight), bias), (x, bias), dy)
    torch.testing.assert_close(torch.autograd.grad(lib.int4_linear(x, *weight, bias), (x, bias), dy), right)
    for call in (lib.dequantize, partial(lib.int4_linear, x)):
        with pytest.raises(RuntimeError, match="4-bit weight has none"):
            call(weight[0], weight[1].clone().requires_grad_(), weight[2])
        with pytest.raises(RuntimeError, match="4-bit weight has none"):  # not a silent zero
            torch.func.jvp(partial(call, weight[0], zero=weight[2]), (weight[1],), (weight[1],))


@everywhere
def test_asked_by_torch(lib, device):
    x, *weight, bias = make(lib, device=device)
    op = torch.ops.int4_linear
    torch.library.opcheck(op.dequantize.default, weight)
    y = lib.int4_linear(x, *weight, bias)
    many = torch.stack((x, -x), 1)
    batched = torch.vmap(lib.int4_linear, (1, None, None, None, None))(many, *weight, bias)
    torch.testing.assert_close(batched, lib.int4_linear(many.transpose(0, 1), *weight, bias), rtol=0.02, atol=0.02)
    two = torch.vmap(lib.int4_linear, (None, None, None, None, 0))(x, *weight, torch.stack((bias, bias)))
    torch.testing.assert_close(two[1], y, rtol=0.02, atol=0.02)
    with torch.autocast(device, torch.float16):
        assert lib.int4_linear(x.float(), *weight, bias).dtype == torch.bfloat16
        assert torch.func.vjp(lambda x: op.int4_linear(x, *weight, None), x)[0].dtype == torch.bfloat16


@everywhere
def test_module(lib, device, tmp_path):
    linear = nn.Linear(256, 192, dtype=torch.bfloat16, device=device)
    layer, x = lib.Int4Linear.from_linear(linear), torch.randn(5, 256, device=device).bfloat16()
    assert (layer.in_features, layer.out_features) == (256, 192)
    assert repr(layer) == "Int4Linear(in_features=256, out_features=192, bias=True)"
    assert layer.bias.requires_grad
    y = layer(x)
    assert ((y - linear(x)).float().norm() / y.float().norm()) < 0.2
    assert not lib.Int4Linear.from_linear(linear.requires_grad_(False)).bias.requires_grad
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = lib.Int4Linear.from_linear(nn.Linear(256, 192, dtype=torch.bfloat16, device="meta"))
    assert other(x.to("meta")).shape == (5, 192)
    other.load_state_dict(torch.load(tmp_path / "layer.pt"), assign=True)
    assert torch.equal(other(x), y)
    assert torch.equal(torch.fx.symbolic_trace(layer)(x), y)
    torch._dynamo.reset()
    graphs = []
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=lambda g, _: graphs.append(g) or g.forward)
    for batch in (5, 2, 7):
        assert torch.equal(compiled(x.repeat(2, 1)[:batch]), layer(x.repeat(2, 1)[:batch]))
    assert len(graphs) == 1
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), y)
    rows = {"x": {0: torch.export.Dim("rows")}}
    assert torch.equal(torch.export.export(layer, (x,), dynamic_shapes=rows).module()(x[:3]), layer(x[:3]))
    with torch.autocast(device, torch.float16):  # of the operator, too: torch.export and fx keep only that
        assert torch.ops.int4_linear.int4_linear(x.float(), *layer.buffers(), layer.bias.float()).dtype == x.dtype
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x.float()), y)


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
    """One that did not come from pack(), such as GPTQ's, which may be 16, gives what the formula says."""
    x, packed, scale, zero, _ = make(lib, 256, 128, dtype=dtype, device=device)
    zero = torch.arange(256, device=device).byte()[None]
    codes = (lib.dequantize(packed, torch.ones_like(scale), torch.zeros_like(zero))).double()
    right = (codes - zero.t()) * scale.t().double()
    torch.testing.assert_close(lib.dequantize(packed, scale, zero).double(), right, rtol=0.01, atol=0)
    for batch in (1, 12, 40):
        many = x[:1].repeat(batch, 1)
        y = lib.int4_linear(many, packed, scale, zero).double()
        torch.testing.assert_close(y, many.double() @ right.t(), rtol=0.01, atol=0.01 * right.abs().max().item())


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
def test_replace_linear_layers(lib, device):
    def linear(n, k=128, dtype=torch.bfloat16):
        return nn.Linear(k, n, dtype=dtype, device=device).requires_grad_(False)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(128, 128, dtype=torch.bfloat16, device=device)
            self.out = linear(128)
            self.out.weight = self.embedding.weight

    shared = linear(128).train(False)
    model = nn.ModuleDict({"one": shared, "two": nn.Sequential(shared, linear(192)), "single": linear(64, dtype=None)})
    model.update(
        {"odd": linear(100), "last": linear(64), "tied": Tied(), "pruned": prune.identity(linear(64), "weight")}
    )
    options = {"dtype": torch.bfloat16, "device": device, "batch_first": True}
    model["attention"] = nn.MultiheadAttention(128, 2, **options)
    model["encoder"] = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 2, 128, **options), 1)
    x = torch.randn(2, 5, 128, dtype=torch.bfloat16, device=device)
    before = {name: str(module) for name, module in model.named_modules()}
    with pytest.raises(ValueError, match="no linear layer is called lost"):
        lib.replace_linear_layers(model, skip=["last", "lost"])
    assert before == {name: str(module) for name, module in model.named_modules()}
    skipped = lib.replace_linear_layers(model, skip="last")
    layer = "encoder.layers.0"
    expected = {"single": "float32", "odd": "100", "last": "skip", "tied.out": "tied.embedding", "pruned": "hooks"}
    expected |= dict.fromkeys(("attention.out_proj", f"{layer}.self_attn.out_proj"), "N")
    expected |= dict.fromkeys((f"{layer}.linear1", f"{layer}.linear2"), "reads")
    assert set(skipped) == set(expected), skipped
    assert all(reason in skipped[name] for name, reason in expected.items()), skipped
    assert isinstance(model["one"], lib.Int4Linear)
    assert model["one"] is model["two"][0]
    assert not model["one"].training
    assert model["two"](x).shape == (2, 5, 192)
    for training in (True, False):  # evaluation takes torch's fast path, which reads weights
        model.train(training)
        with torch.no_grad():
            assert model["attention"](x, x, x)[0].shape == model["encoder"](x).shape == x.shape
    assert lib.replace_linear_layers(linear(64)) == {"": "it is the model itself"}


@everywhere
@pytest.mark.parametrize("gated", [False, True])
def test_cat(lib, gated, device):
    def linear(n, bias=True):
        return lib.Int4Linear.from_linear(nn.Linear(192, n, bias, dtype=torch.bfloat16, device=device))

    layers = [linear(128), linear(128, bias=False)] + [linear(64)] * (not gated)
    with torch.no_grad():  # the bias is still trained
        both = lib.Int4Linear.cat(layers, gated=gated)
    assert (both.in_features, both.out_features) == (192, 128 if gated else 320)
    for shape in ((192,), (3, 192), (2, 9, 192), (70, 192)):
        x = torch.randn(shape, dtype=torch.bfloat16, device=device, requires_grad=True)
        ys = [F.linear(x, lib.dequantize(*layer.buffers()), layer.bias) for layer in layers]
        right = F.silu(ys[0]) * ys[1] if gated else torch.cat(ys, -1)
        dy = torch.randn_like(right)
        with torch.no_grad():
            torch.testing.assert_close(both(x), right, rtol=0.02, atol=0.02)
            torch.testing.assert_close(torch.compile(both)(x), both(x))
        torch.testing.assert_close(both(x), right, rtol=0.02, atol=0.02)
        (dx, dbias), wanted = torch.autograd.grad(both(x), (x, both.bias), dy), torch.autograd.grad(right, x, dy)[0]
        torch.testing.assert_close(dx, wanted, rtol=0.03, atol=0.03)
        assert dbias.shape == both.bias.shape
        tangent = torch.func.jvp(both, (x,), (x,))[1]
        torch.testing.assert_close(tangent, torch.func.jvp(torch.compile(both, backend="eager"), (x,), (x,))[1])
    rows = [lib.dequantize(*layer.buffers()) for layer in layers]
    stored = torch.stack(rows, 1).flatten(0, 1) if gated else torch.cat(rows)
    assert torch.equal(lib.dequantize(*both.buffers()), stored)
    torch.library.opcheck(torch.ops.int4_linear.int4_linear.default, (x, *both.buffers(), both.bias, gated))
    other = lib.Int4Linear.from_linear(nn.Linear(128, 128, dtype=torch.bfloat16, device=device))
    for wrong in ([], [layers[0], other], *([[both, both], layers[:1]] if gated else [])):
        with pytest.raises(ValueError, match=r"int4_linear: (layers|gated)"):
            lib.Int4Linear.cat(wrong, gated=gated)


def launch_plan(lib, y, x, packed, scale, zero, bias, plan, sizes, gated=False):
    """The launcher by its name in the library, for a plan that make_plan would not choose; its error, or None."""
    launch = ctypes.CDLL(lib.build())._Z11launch_planRK8Int4CallRK4PlanP11CUstream_st
    launch.restype = ctypes.c_char_p
    n, k, batch = sizes
    pointers = [0 if each is None else each.data_ptr() for each in (packed, scale, zero, y, x, bias)]
    is_half = scale.dtype == torch.float16
    call = struct.pack("@3P2i2?6x3Pi4x", *pointers[:3], n, k, is_half, gated, *pointers[3:], batch)
    return launch(call, struct.pack("@4id", *plan, batch, 0), None)


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
            for splits, whole in ((1, 0), (2, 0), (3, 0), (5, 0), (8, 0), (3, 1)) if shape else [(1, 0)]:
                ys = [torch.full((batch, n), torch.nan, dtype=dtype, device="cuda") for _ in range(2)]
                for y in ys:
                    plan = (shape, splits, whole * (shape >= FIRST_WGMMA and n > 10000))
                    assert launch_plan(lib, y, x, *weight, bias, plan, (n, k, batch)) is None
                worst = (ys[0].double() - right).abs().amax(1) / right.abs().amax(1)
                assert worst.max() <= torch.finfo(dtype).eps, (n, k, batch, shape, splits, whole)
                assert torch.equal(*ys), (n, k, batch, shape, splits, whole)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_failed_launch_leaves_no_error(lib):
    """A failure is reported once: not by torch, too, at its next launch."""
    x = torch.zeros(16, device="cuda")
    assert b"invalid" in launch_plan(lib, x, x, x, x, x, None, (0, 1, 0), (0, 128, 1))  # no rows of W: no blocks
    assert (x + 1).sum().item() == 16  # torch asks for the last error at each of its launches


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graph_and_streams(lib):
    x, *weight, bias = make(lib, 4096, 4096, 4, device="cuda")
    right, graph = lib.int4_linear(x, *weight, bias), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = lib.int4_linear(lib.int4_linear(x, *weight, bias), *weight, bias)
    graph.replay()
    assert torch.equal(y, lib.int4_linear(right, *weight, bias))
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.equal(lib.int4_linear(x, *weight, bias), right)


@pytest.mark.thorough
@pytest.mark.anywhere
def test_bench_without_gpu(run, tmp_path):
    program, results = FOLDER / "bench.py", FOLDER.parents[1] / "docs" / "results"
    assert "there is no folder" in run(program, "--json", tmp_path / "missing" / "file.json", status=2).stderr
    assert (
        "holds no results of this program" in run(program, "--from", results / "h200-int4-steps.json", status=2).stderr
    )
    run(program, "--from", results / "h200-int4.json", "--plot", tmp_path / "plot.svg")
    assert "8192 x 8192" in (tmp_path / "plot.svg").read_text()


@pytest.mark.thorough
@pytest.mark.skipif(not toolchain.find_nvcc(), reason="needs nvcc")
@pytest.mark.parametrize(
    "arch", ["90a", 80, *(pytest.param(x, marks=pytest.mark.slow) for x in (86, 89, 90, 100, 120))]
)
def test_no_warning(arch, tmp_path):
    """Nor a spill, nor wgmma made serial; and loops are unrolled, or an array would take stack."""
    options = ["-Werror=all-warnings", "-Xptxas=-v,--warning-as-error", "-Xcompiler=-Wall,-Werror"]
    for source in ["int4_linear_kernel.cu"] + ["ladder.cu"] * (arch == "90a"):
        command = [toolchain.find_nvcc(), "-O3", "-std=c++17", f"-I{FOLDER.parent}", *options, "-c", FOLDER / source]
        command.append(f"-gencode=arch=compute_{arch},code=sm_{arch}")
        done = subprocess.run([*command, "-o", tmp_path / "kernel.o"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for what in ("stack frame", "spill stores"):
            assert set(re.findall(rf"(\d+) bytes {what}", done.stderr)) == {"0"}
        assert "serialized" not in done.stderr


@pytest.mark.skipif(not toolchain.find_nvcc(), reason="needs nvcc")
def test_ladder(lib, tmp_path):
    """Its reference agrees with torch. On a GPU so does each rung, at sizes of few and of many tiles."""
    command = [toolchain.find_nvcc(), "-std=c++17", "-shared", "-Xcompiler=-fPIC", f"-I{FOLDER.parent}"]
    command += ["-gencode=arch=compute_90a,code=sm_90a", FOLDER / "ladder.cu", "-o", tmp_path / "ladder.so"]
    subprocess.run(command, check=True)
    for name in ("bench", "ladder"):  # other lessons have modules of these names
        sys.modules.pop(name, None)
    sys.path.insert(0, str(FOLDER))
    ladder = importlib.import_module("ladder")
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
