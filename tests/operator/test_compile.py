"""The compiler, where tests/test_contract.py does not ask. (test_examples.py has an AOTInductor package.)"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad


@pytest.mark.parametrize(
    ("dynamic", "backend"),
    [
        pytest.param(False, "inductor", marks=[pytest.mark.inductor, pytest.mark.thorough]),
        (True, "aot_eager"),
    ],
)
def test_compile_torch_launch_add2(add2, device, dynamic, backend):
    """An operator that writes into its argument: the graph must keep the order of writing and reading."""

    def launch(a, out):
        c = torch.empty_like(a)
        add2.torch_launch_add2(c, a, a, a.numel())
        d = c + 1
        add2.torch_launch_add2(out[1], a, d, a.numel() - 1)  # a part of a view of an argument
        if not dynamic:  # with a symbol as n torch fails where c was copied first: pytorch issue 181735
            add2.torch_launch_add2(c, c, c, a.numel())
        return c, d, out.sum(0)

    torch.compiler.reset()
    compiled = torch.compile(launch, fullgraph=True, dynamic=dynamic, backend=backend)
    for n in (10, 13)[: 2 if dynamic else 1]:
        a, out = torch.randn(n, device=device), torch.zeros(3, n, device=device)
        c, d, total = compiled(a, out)
        assert torch.equal(c, (2 if dynamic else 4) * a)
        assert torch.equal(d, 2 * a + 1)
        assert torch.equal(out[1, :-1], a[:-1] + d[:-1])
        assert torch.equal(total, out[1])


@pytest.mark.inductor
def test_pending_minus_sign(lane, device):
    """As c, a view whose sign torch has not applied yet is refused: torch.compile's default backend loses it, and
    c.copy_(a) writes the wrong sign."""
    torch.compiler.reset()
    a, b = torch.randn(2, 5, device=device)
    c = torch._neg_view(torch.zeros_like(a))
    compiled = torch.compile(lambda c: lane.torch_launch_add2(c, a, b, 5))
    with pytest.raises(Exception, match="c has a minus sign still to be applied"):
        compiled(c)
    assert torch.equal(c, torch.zeros_like(c))
    lane.torch_launch_add2(c, a, b, 5)
    assert torch.equal(c, a + b)


@pytest.mark.inductor
def test_forward_derivative(lane, device):
    """Made in the compiled function, or on while it is compiled. Refused, or computed where there is none."""

    def call(a, b):
        c = torch.zeros_like(a)
        lane.torch_launch_add2(c, a, b, 5)
        return c

    def with_tangent(a, b):
        with forward_ad.dual_level():
            return call(forward_ad.make_dual(a, b), b)

    a, b = torch.randn(2, 5, device=device)
    torch.compiler.reset()
    compiled = [torch.compile(f, fullgraph=True) for f in (call, with_tangent)]
    for f in (with_tangent, compiled[1]):
        with pytest.raises(Exception, match="has no derivative"):
            f(a, b)
    if torch.__version__ >= "2.13":  # before, the default backend fails for what gradient.py asks
        with forward_ad.dual_level():
            assert torch.equal(compiled[0](a, b), a + b)


def test_compiled_autograd(add2, device):
    """An eager graph with add2 in it, run backward by torch.compile."""
    x, b = torch.randn(2, 3, 4, device=device)
    x.requires_grad_()
    loss = (add2.add2(x * x, b) * b).sum()
    torch.compiler.reset()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: loss.backward(), backend="eager")()
    torch.testing.assert_close(x.grad, 2 * x.detach() * b)


def test_fake_and_meta(add2, device, dtype):
    for mode, place in ((FakeTensorMode(), device), (torch.device("meta"), "meta")):
        with mode:
            a = torch.empty(3, 4, device=place, dtype=dtype)
            c = add2.add2(a, a)
            assert (c.shape, c.dtype, c.device.type) == ((3, 4), dtype, place)
            assert add2.torch_launch_add2(c, a, a, 12) is None
            assert add2.torch_launch_add2(c, c, c, 12) is None
            assert add2.torch_launch_add2(a[:1], a[1:], a[:1], 3) is None  # in place, and no memory shared with b
