"""examples/add_rms_norm: values and gradients against float64, and what tests/test_contract.py does not ask."""

import itertools
from functools import partial

import pytest
import torch
from torch.autograd import forward_ad

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
EPS = 1e-6
OPS = torch.ops.add_rms_norm


@pytest.fixture(scope="module", autouse=True)
def built(lesson):
    global lib
    lib = lesson("add_rms_norm")


def make(shape, dtype=torch.float32, device="cpu", scale=1.0, seed=0, weight_dtype=None):
    """a, b, weight, dy, ds."""
    torch.manual_seed(seed)
    sizes = (shape, shape, shape[-1:], shape, shape)
    values = [torch.randn(size, dtype=torch.float64, device=device) for size in sizes]
    values[:2] = [(x * scale).clamp(-3e4, 3e4) for x in values[:2]]  # their sum is finite in float16, too
    values[2] = 1 + values[2] / 4
    dtypes = [dtype, dtype, weight_dtype or dtype, dtype, dtype]
    return [value.to(kind) for value, kind in zip(values, dtypes, strict=True)]


def step(function, a, b, weight, dy, ds):
    a, b, weight = (x.detach().clone().requires_grad_() for x in (a, b, weight))
    y, s = function(a, b, weight, EPS)
    return [y.detach(), s.detach(), *torch.autograd.grad((y, s), (a, b, weight), (dy, ds))]


def both():
    return lib.add_rms_norm, lib.reference


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
# And these only on a GPU.
WIDE = [10, 17, 36, 63, 66, 127, 257, 258, 300, 385, 514, 999, 1026, 2047, 3001, 5001, 10001, 50001]
WIDE += [16384, 20000, 32776, 33000, 65536, 100001, 131072, 200000, 300000]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_values_and_gradients(dtype, device):
    weight_dtypes = [dtype, torch.float32] if dtype.itemsize == 2 else [dtype]
    for width, weight_dtype in itertools.product(WIDTHS + WIDE * (device == "cuda"), weight_dtypes):
        for rows in (1, 5, 300 if width <= 1024 else 40):
            assert_as_good_as_torch(*make((rows, width), dtype, device, 1.0, rows + width, weight_dtype))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_many_short_rows(dtype):
    """A block takes several tiles, one after the other; the last one is not full."""
    for shape in ((60001, 33), (20001, 130), (6001, 514)):
        assert_as_good_as_torch(*make(shape, dtype, "cuda"))


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
    for view in [  # of the gradients, too
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


def test_gradients_of_one_result(device):
    """Only y or only s is used: the other gradient is undefined. And several gradients in one call."""
    inputs = tuple(x.requires_grad_() for x in make((2, 2, 3), torch.float64, device)[:3])
    for used in (0, 1):
        losses = [f(*inputs)[used].sin().sum() for f in both()]
        torch.testing.assert_close(*(torch.autograd.grad(x, inputs, materialize_grads=True) for x in losses))
    jacobian = torch.autograd.functional.jacobian  # vectorized, it is a vmap of the gradient
    torch.testing.assert_close(*(jacobian(f, inputs, vectorize=True) for f in both()))


def test_vmap_of_the_gradient(device):
    for batch in (3, 0):
        a, b = torch.randn(2, batch, 5, 8, device=device)
        weights, ones = torch.randn(batch, 8, device=device), torch.ones(5, 8, device=device)
        for dims, inputs in [((0, 0, 0), (a, b, weights)), ((None, None, 0), (ones, ones, weights))]:
            torch.testing.assert_close(*(torch.vmap(f, dims)(*inputs) for f in both()))
        inputs = (a, None, b, weights, torch.ones(batch, 5, device=device))
        dx, dweight = torch.vmap(OPS.add_rms_norm_backward, (0, None, 0, 0, 0))(*inputs)
        assert (dx.shape, dweight.shape) == (a.shape, weights.shape)


@pytest.mark.parametrize("i", range(3))
def test_second_derivatives_are_refused(i, device):
    """The gradient is a kernel without a derivative of any kind; torch.func takes torch's own functions instead."""
    a, b, weight, dy, ds = make((2, 8), device=device)
    _, s, rstd = OPS.add_rms_norm(a, b, weight, EPS)
    inputs = [dy, ds, s, weight, rstd]

    def function(x):
        return OPS.add_rms_norm_backward(*inputs[:i], x, *inputs[i + 1 :])[0]

    def jvp(function, x):
        return torch.func.jvp(function, (x,), (x,))

    def dual(x):
        with forward_ad.dual_level():
            return function(forward_ad.make_dual(x, x.detach()))

    x, compiled_jvp = inputs[i], partial(torch.compile(jvp, backend="aot_eager"), function)
    for call in (partial(jvp, function), compiled_jvp, torch.func.jacfwd(function), dual):
        with pytest.raises(RuntimeError, match="no second derivative"):
            call(x)
    leaves = [each.clone().requires_grad_() for each in (a, b, weight)]
    first = torch.autograd.grad(lib.add_rms_norm(*leaves)[0].sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(first[0].sum(), leaves)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_calls_that_overlap_in_a_graph():
    a, b, weight, dy, ds = make((700, 1024), torch.bfloat16, "cuda")
    expected = step(lib.add_rms_norm, a, b, weight, dy, ds)
    second = lib.add_rms_norm(*expected[:2], weight, EPS)
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
