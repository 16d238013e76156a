"""Gradients at the edges, as torch's own add has them. Derivatives of every kind are in tests/test_referee_ours.py."""

import pytest
import torch
from torch.func import vmap


@pytest.fixture(params=["add2.add2", "torch.ops"])
def add(request, add2):
    return {"add2.add2": add2.add2, "torch.ops": torch.ops.add2.add2}[request.param]


def leaf(*shape, device, dtype=torch.float64):
    return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)


def test_parameters_inside_of_a_transform(add2, device):
    """torch.func is at work, though not on these tensors."""
    p, q, x = (torch.rand(3, device=device, requires_grad=True) for _ in "pqx")
    torch.vmap(lambda x: x * add2.add2(p, q))(x.detach().expand(2, 3)).sum().backward()
    assert torch.equal(p.grad, 2 * x.detach())
    y = torch.func.grad(lambda x: (x * add2.add2(p, x)).sum())(x.detach())
    torch.testing.assert_close(y, p + 2 * x)


def test_finite_differences(add, device):
    a, b = leaf(2, 3, device=device), leaf(2, 3, device=device)
    batched = {"check_batched_grad": True, "check_forward_ad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(add, (a, b), **batched)
    assert torch.autograd.gradgradcheck(add, (a, b), check_fwd_over_rev=True, check_rev_over_rev=True)


def test_only_needed_gradients(add, device):
    a, b = leaf(5, device=device), torch.randn(5, device=device, dtype=torch.float64)
    add(a, b).sum().backward()
    assert a.grad is not None
    assert b.grad is None
    assert add(b, b).grad_fn is None
    with torch.no_grad():
        assert add(a, a).grad_fn is None


def test_no_gradient_arrives(add, device):
    """Where the rest of the graph gives none, a.grad stays None, as with torch.add: zeros would move a parameter."""

    class GivesNone(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    a, b = torch.randn(2, 5, device=device).requires_grad_().unbind()
    for x in (a, b):
        x.retain_grad()
    GivesNone.apply(add(a, b)).sum().backward()
    assert a.grad is None
    assert b.grad is None


def test_nothing_is_saved(add, device):
    """The gradient of a sum does not need its terms: no tensor is kept alive by the graph."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        c = add(leaf(8, device=device), leaf(8, device=device))
    assert c.requires_grad
    assert saved == []


def test_vmap_nested(add, device):
    x, y = torch.randn(2, 4, device=device), torch.randn(3, 4, device=device)
    assert torch.equal(vmap(vmap(add, (None, 0)), (0, None))(x, y), x[:, None] + y)
    needs = x.clone().requires_grad_()
    vmap(vmap(add, (None, 0)), (0, None))(needs, y).sum().backward()
    assert torch.equal(needs.grad, torch.full_like(x, 3))
