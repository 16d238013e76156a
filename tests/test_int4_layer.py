"""examples/int4_linear: the layer, and what puts it into a model."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

everywhere = pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())


@pytest.fixture(scope="module")
def lib(lesson):
    torch.compiler.reset()
    return lesson("int4_linear")


@everywhere
def test_module(lib, device, tmp_path):
    linear = nn.Linear(256, 192, dtype=torch.bfloat16, device=device)
    layer, x = lib.Int4Linear.from_linear(linear), torch.randn(5, 256, device=device).bfloat16()
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
    rows = {"x": {0: torch.export.Dim("rows")}}
    assert torch.equal(torch.export.export(layer, (x,), dynamic_shapes=rows).module()(x[:3]), layer(x[:3]))
    with torch.autocast(device, torch.float16):  # of the operator, too: torch.export and fx keep only that
        assert torch.ops.int4_linear.int4_linear(x.float(), *layer.buffers(), layer.bias.float()).dtype == x.dtype
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x.float()), y)


@everywhere
def test_modules_around_a_norm(lib, device):
    """Together they give what they and the norm give one by one; with a gate and biases."""
    first, gate, up = (nn.Linear(256, 256, dtype=torch.bfloat16, device=device) for _ in range(3))
    first, *gates = (lib.Int4Linear.from_linear(each) for each in (first, gate, up))
    second = lib.Int4Linear.cat(gates, gated=True)
    x, residual = torch.randn(2, 3, 256, device=device).bfloat16()
    norm = torch.rand(256, device=device).bfloat16()
    with torch.no_grad():
        s, *between = first.before_norm(x, residual, norm)
        assert torch.equal(s, residual + first(x))
        right = second(F.rms_norm(s, [256], norm, 1e-5))
        torch.testing.assert_close(second.after_norm(*between, 1e-5), right, rtol=0.02, atol=0.02)
    with pytest.raises(RuntimeError, match="before or after a norm has no gradient"):
        first.before_norm(x, residual, norm)


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


def test_a_layer_that_does_more_is_kept(lib):
    """What stands on the layer itself, not on its class, would be lost without a word."""

    def linear():
        return nn.Linear(64, 64, dtype=torch.bfloat16)

    model = nn.ModuleDict({"own": linear(), "adapter": linear(), "scaled": linear(), "plain": linear()})
    original = model["own"].forward
    model["own"].forward = lambda x: original(x) + 1
    model["adapter"].adapter = nn.Linear(64, 4, dtype=torch.bfloat16)
    model["scaled"].register_buffer("factor", torch.ones(()))
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    before = model["own"](x)
    kept = lib.replace_linear_layers(model)
    assert isinstance(model["plain"], lib.Int4Linear)
    assert isinstance(model["adapter"].adapter, nn.Linear)
    assert torch.equal(model["own"](x), before)
    assert kept["own"] == "it has a forward of its own, which would be lost"
    assert kept["adapter"] == "it has adapter.bias, which would be lost"
    assert kept["scaled"] == "it has factor, which would be lost"


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
            torch.testing.assert_close(torch.compile(both, backend="aot_eager")(x), both(x))
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
