"""examples/add_rms_norm: values and gradients against float64, and everything that torch asks of an operator."""

import itertools
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils import cpp_extension

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "add_rms_norm"
sys.path.insert(0, str(FOLDER))
import add_rms_norm as lib  # noqa: E402

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
EPS = 1e-6
OPS = torch.ops.add_rms_norm
CUDA_HOME = torch.version.cuda and toolchain.environment().get("CUDA_HOME")


@pytest.fixture(scope="module", autouse=True)
def built():
    os.environ["PATH"] = toolchain.tool_path()  # ninja
    cpp_extension.CUDA_HOME = CUDA_HOME
    lib.build()


@pytest.fixture(params=["cpu"] + ["cuda"] * torch.cuda.is_available())
def device(request):
    return request.param


def make(shape, dtype=torch.float32, device="cpu", scale=1.0, seed=0, weight_dtype=None):
    """a, b, weight, dy, ds."""
    torch.manual_seed(seed)
    values = [torch.randn(size, dtype=torch.float64) for size in (shape, shape, shape[-1:], shape, shape)]
    values[:2] = [(x * scale).clamp(-3e4, 3e4) for x in values[:2]]  # their sum is finite in float16, too
    values[2] = 1 + values[2] / 4
    dtypes = [dtype, dtype, weight_dtype or dtype, dtype, dtype]
    return [value.to(kind).to(device) for value, kind in zip(values, dtypes, strict=True)]


def step(function, a, b, weight, dy, ds):
    a, b, weight = (x.detach().clone().requires_grad_() for x in (a, b, weight))
    y, s = function(a, b, weight, EPS)
    return [y.detach(), s.detach(), *torch.autograd.grad((y, s), (a, b, weight), (dy, ds))]


def largest(x):
    return x.abs().max().item() if x.numel() else 0.0


def rounding(s, weight, dy, ds):
    """Of the terms of dx and of dweight, in float32: they may cancel, in a row of one element all but eps."""
    rstd = torch.rsqrt(s.square().mean(-1, keepdim=True) + EPS)
    unit = torch.finfo(torch.float32).eps
    dx = 4 * unit * (largest(dy * weight * rstd) + largest(ds))
    return [0, 0, dx, dx, unit * largest((dy * s * rstd).abs().reshape(-1, len(weight)).sum(0))]


def assert_as_good_as_torch(*inputs):
    """The largest error is at most torch's, or half a unit in the last place of the largest value more; in float32,
    where statistics have no more digits than results, a unit."""
    s, *others = (x.double() for x in (inputs[0] + inputs[1], *inputs[2:]))  # rounding this sum is part of the operator
    right = step(lib.reference, s, torch.zeros_like(s), *others)
    if inputs[0].dtype == torch.float64:
        return torch.testing.assert_close(step(lib.add_rms_norm, *inputs), right, rtol=1e-12, atol=1e-12)
    results, again, theirs = (step(f, *inputs) for f in (lib.add_rms_norm, lib.add_rms_norm, lib.reference))
    for i, more in enumerate(rounding(s, *others)):
        assert results[i].dtype == theirs[i].dtype == inputs[2 if i == 4 else 0].dtype
        assert results[i].shape == right[i].shape
        assert torch.equal(results[i], again[i])  # the same bits in each run
        unit = largest(right[i]) * torch.finfo(results[i].dtype).eps * (1 if inputs[0].dtype == torch.float32 else 0.5)
        assert largest(results[i] - right[i]) <= largest(theirs[i] - right[i]) + unit + more
    assert torch.equal(results[1], inputs[0] + inputs[1])


# No whole vectors, one warp per row, several, two vectors per thread; then a cluster of 2 to 16 blocks, and too wide.
WIDTHS = [1, 7, 8, 100, 130, 256, 264, 1000, 1001, 1024, 2056, 4096, 8192, 8200]
WIDE = [17, 63, 127, 257, 999, 2047, 3001, 5001, 10001, 50001]  # and these only on a GPU
WIDE += [16384, 20000, 32776, 33000, 65536, 100001, 131072, 200000, 300000]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_values_and_gradients(dtype, device):
    weight_dtypes = [dtype, torch.float32] if dtype.itemsize == 2 else [dtype]
    for width, weight_dtype in itertools.product(WIDTHS + WIDE * (device == "cuda"), weight_dtypes):
        for rows in (1, 5, 300 if width <= 1024 else 40):
            assert_as_good_as_torch(*make((rows, width), dtype, device, 1.0, rows + width, weight_dtype))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_autocast():
    """Results have the dtype of torch's, whatever the inputs have."""
    for dtypes in itertools.product([torch.float32, torch.bfloat16], repeat=3):
        inputs = zip(make((5, 64), device="cuda")[:3], dtypes, strict=True)
        a, b, weight = (x.to(dtype).requires_grad_() for x, dtype in inputs)
        with torch.autocast("cuda", torch.bfloat16):
            y, _ = lib.add_rms_norm(a, b, weight)
            torch.testing.assert_close(y, F.rms_norm(a.float() + b.float(), weight.shape, weight, EPS))
        y.sum().backward()
        assert (a.grad.dtype, b.grad.dtype, weight.grad.dtype) == dtypes


@pytest.mark.parametrize("dtypes", list(itertools.product(FLOATS, repeat=3)), ids=str)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_autocast_on_a_cpu(dtypes):
    """A float32 residual and a bfloat16 branch, say: dtypes, values and gradients are those of torch's pair."""
    inputs = [x.to(dtype).requires_grad_() for x, dtype in zip(make((5, 64))[:3], dtypes, strict=True)]
    functions = [lib.reference, lib.add_rms_norm]
    is_old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)  # traces custom operators without autocast
    if dtypes == (torch.float32, torch.bfloat16, torch.bfloat16) and not is_old:
        functions.append(torch.compile(lib.add_rms_norm))
    found = []
    for function in functions:
        with torch.autocast("cpu", torch.bfloat16):
            y, s = function(*inputs, EPS)
        found.append([y, s, *torch.autograd.grad((y.float() + s.float()).square().sum(), inputs)])
    tolerance = {} if set(dtypes) == {torch.float32} else {"rtol": 0.02, "atol": 0.05}
    for ours in found[1:]:
        torch.testing.assert_close(ours, found[0], **tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e2, 1e4])
def test_scales(scale, dtype, device):
    for width in (33, 512, 1024, 3000):
        inputs = make((20, width), dtype, device, scale)
        if scale == 1:
            inputs[0][3, 5] = 3e4  # one huge element
        assert_as_good_as_torch(*inputs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, "overflow", "square overflows"])
def test_not_finite(value, dtype, device):
    """NaN and infinity are where torch has them, and the other rows are untouched."""
    values = {"overflow": torch.finfo(dtype).max, "square overflows": torch.finfo(dtype).max / 4}
    for width in (100, 1024, 1001, 4097):
        a, b, weight, *_ = make((6, width), dtype, device)
        a[2, 7] = b[2, 7] = values.get(value, value)
        on_a_cpu = lib.reference(a.cpu(), b.cpu(), weight.cpu(), EPS)
        for ours, theirs in zip(lib.add_rms_norm(a, b, weight, EPS), on_a_cpu, strict=True):
            assert torch.equal(ours.isnan().cpu(), theirs.isnan())
            assert torch.equal(ours.isinf().cpu(), theirs.isinf())
            assert ours[[0, 1, 3, 4, 5]].isfinite().all()


def test_shapes_and_strides(device):
    for shape in ((16,), (0, 16), (2, 0, 16), (2, 3, 4, 16), (1, 1, 16)):
        assert_as_good_as_torch(*make(shape, device=device))
    a, b, weight, dy, ds = make((12, 64), device=device)
    for view in [
        (torch.randn(12 * 64 + 1, device=device)[1:].view(12, 64), b, weight, dy, ds),  # contiguous, and not aligned
        (a.view(3, 4, 64).transpose(0, 1), b.view(4, 3, 64), weight, dy.view(4, 3, 64), ds.view(4, 3, 64)),
        (a[:, ::2], b[:, 1::2], weight[::2], dy[:, ::2], ds[:, 32:]),
        (a[:, 1:33], b[:, :32], weight[3:35], dy[:, 5:37], ds[:, 32:]),  # rows that start at odd addresses
        (a[:1].expand(12, 64), b, weight, dy[:, :1].expand(12, 64), ds),
    ]:
        assert_as_good_as_torch(*view)


def test_refusals():
    """What tests/test_contract.py does not ask: scalars, eps, and the operator of the gradient."""
    a, w = torch.ones(2, 3), torch.ones(3)
    for inputs, message in [
        ((torch.ones(()), torch.ones(()), w), "no last dimension"),
        ((torch.ones(2, 0), torch.ones(2, 0), torch.ones(0)), "no last dimension, or it is empty"),
        ((a, a, w, torch.tensor(EPS)), "eps is a Tensor, expected a number"),  # its gradient would be lost
        ((a, None, a, w, torch.ones(3)), r"rstd is Float\[3\], expected Float\[2\]"),
        ((torch.ones(2, 4), None, a, w, torch.ones(2)), r"dy is Float\[2, 4\]"),
        ((a, None, a, w.to("meta"), torch.ones(2)), "expected one device"),
        ((a, None, a, w, torch.ones(2, device="meta")), "expected one device"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            (OPS.add_rms_norm_backward if len(inputs) == 5 else lib.add_rms_norm)(*inputs)


def test_gradcheck(device):
    a, b, weight = inputs = tuple(x.requires_grad_() for x in make((2, 2, 3), torch.float64, device)[:3])
    assert torch.autograd.gradcheck(lib.add_rms_norm, inputs)
    for used in (0, 1):  # only y, only s: the other gradient is undefined
        assert torch.autograd.gradcheck(lambda *inputs, used=used: lib.add_rms_norm(*inputs)[used], inputs)
    assert torch.autograd.gradcheck(lambda b: lib.add_rms_norm(a.detach(), b, weight.detach()), (b,))
    jacobian = torch.autograd.functional.jacobian  # vectorized, it is a vmap of the gradient
    torch.testing.assert_close(*(jacobian(f, inputs, vectorize=True) for f in (lib.add_rms_norm, lib.reference)))


@pytest.mark.parametrize("batch", [3, 0])
def test_vmap(batch, device):
    a, b = torch.randn(2, batch, 5, 8, device=device)
    weights, ones = torch.randn(batch, 8, device=device), torch.ones(5, 8, device=device)
    for dims, inputs in [
        ((0, 0, None), (a, b, ones[0])),
        ((1, None, None), (a, b[:, 0], ones[0])),
        ((0, 0, 0), (a, b, weights)),
        ((None, None, 0), (ones, ones, weights)),
    ]:
        torch.testing.assert_close(*(torch.vmap(f, dims)(*inputs) for f in (lib.add_rms_norm, lib.reference)))
    inputs = (a, None, b, weights, torch.ones(batch, 5, device=device))
    dx, dweight = torch.vmap(OPS.add_rms_norm_backward, (0, None, 0, 0, 0))(*inputs)
    assert (dx.shape, dweight.shape) == (a.shape, weights.shape)


def test_compile_and_export(device):
    class Layer(torch.nn.Module):
        def forward(self, a, b, weight, eps=EPS):
            y, s = lib.add_rms_norm(torch.tanh(a), b, weight, eps)
            return y * 2, s

    compiled = torch.compile(Layer(), fullgraph=True)
    for rows in (4, 6, 9):  # the second one makes the graph dynamic
        inputs = make((rows, 16), device=device)
        torch.testing.assert_close(step(compiled, *inputs), step(Layer(), *inputs))
    rows = torch.export.Dim("rows")
    program = torch.export.export(Layer(), tuple(inputs[:3]), dynamic_shapes=({0: rows}, {0: rows}, None))
    inputs = make((11, 16), device=device)[:3]
    torch.testing.assert_close(program.module()(*inputs), Layer()(*inputs))
    assert "add_rms_norm.add_rms_norm" in str(program.graph)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_streams_and_graphs():
    a, b, weight, dy, ds = make((700, 1024), torch.bfloat16, "cuda")
    expected = step(lib.add_rms_norm, a, b, weight, dy, ds)
    second = lib.add_rms_norm(*expected[:2], weight, EPS)
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
        assert torch.equal(y2, second[0])
        assert torch.equal(s2, second[1])
