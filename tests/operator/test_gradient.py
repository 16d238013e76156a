"""Gradients: reverse and forward, first and higher, by torch.autograd and torch.func, as torch's own add has them."""

import copy
import pickle

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap


def ways():
    """All that is differentiable: the public function on both lanes, the operator, the Function by hand."""
    import add2
    from add2 import ops
    from add2.function import Add2

    return {"add2.add2": add2.add2, "ops": ops.add2, "torch.ops": torch.ops.add2.add2, "by hand": Add2()}


@pytest.fixture(params=["add2.add2", "ops", "torch.ops", "by hand"])
def add(request):
    return ways()[request.param]


def leaf(*shape, device, dtype=torch.float64):
    return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)


def test_gradcheck(add, device):
    a, b = leaf(3, 4, device=device), leaf(3, 4, device=device)
    assert gradcheck(add, (a, b), check_batched_grad=True)
    assert gradgradcheck(add, (a, b))


def test_gradcheck_forward(add, device):
    a, b = leaf(3, 4, device=device), leaf(3, 4, device=device)
    assert gradcheck(add, (a, b), check_forward_ad=True)


def test_gradcheck_strided_and_expanded(add, device):
    a, b = leaf(4, 3, device=device), leaf(1, 4, device=device)
    assert gradcheck(lambda a, b: add(a.t(), b.expand(3, 4)), (a, b))
    c = add(a.t(), b.expand(3, 4))
    c.sum().backward()  # the gradient arrives expanded: one element, strides 0
    assert torch.equal(a.grad, torch.ones_like(a))
    assert torch.equal(b.grad, torch.full_like(b, 3))
    a.grad = None
    add(a, a).backward(torch.arange(12.0, device=device, dtype=a.dtype).view(3, 4).t())
    assert torch.equal(a.grad, 2 * torch.arange(12.0, device=device, dtype=a.dtype).view(3, 4).t())


def test_only_needed_gradients(add, device):
    a, b = leaf(5, device=device), torch.randn(5, device=device, dtype=torch.float64)
    c = add(a, b)
    c.sum().backward()
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


def test_backward_returns_only_needed_gradients():
    """One for each input of forward(), None where none is needed."""
    from types import SimpleNamespace

    from add2.function import Add2Function

    grad = torch.ones(3)
    for needs in ((True, True, False), (True, False, False), (False, True, False, False)):
        found = Add2Function.backward(SimpleNamespace(needs_input_grad=needs, backward_of=None), grad)
        assert [x is grad for x in found] == list(needs)
        assert all(x is grad or x is None for x in found)


def test_nothing_is_saved(add, device):
    """The gradient of a sum does not need its terms: no tensor is kept alive by the graph."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        c = add(leaf(8, device=device), leaf(8, device=device))
    assert c.requires_grad
    assert saved == []


def test_written_after_it_was_saved(device):
    """A graph that has saved c must notice that torch_launch_add2 wrote into it, as it does with torch.add(out=c)."""
    import add2

    x, c = leaf(4, device=device), torch.ones(4, device=device, dtype=torch.float64)
    for launch in (add2.torch_launch_add2, torch.ops.add2.torch_launch_add2):
        product = x * c
        with torch.no_grad():
            launch(c, c, c, 4)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


TRANSFORMS = {
    "grad": lambda f, x, y: grad(f)(x[0], y[0]),
    "grad of grad": lambda f, x, y: grad(lambda a: grad(f)(a, y[0]).sum())(x[0]),
    "jacrev": lambda f, x, y: jacrev(f, (0, 1))(x[0], y[0]),
    "jacfwd": lambda f, x, y: jacfwd(f, (0, 1))(x[0], y[0]),
    "hessian": lambda f, x, y: hessian(f)(x[0], y[0]),
    "jvp": lambda f, x, y: jvp(f, (x[0], y[0]), (y[0], x[0])),
    "jvp of jvp": lambda f, x, y: jvp(lambda a: jvp(lambda a: f(a, y[0]), (a,), (y[1],))[1], (x[0],), (y[2],)),
    "jvp of grad": lambda f, x, y: jvp(lambda a: grad(f)(a, y[0]), (x[0],), (y[0],)),
    "vmap of jvp": lambda f, x, y: vmap(lambda a, b: jvp(f, (a, b), (b, a))[1])(x, y),
    "vmap of grad": lambda f, x, y: vmap(grad(f))(x, y),
    "grad of vmap": lambda f, x, y: grad(lambda a: vmap(f)(a, y).sum())(x),
    "grad of vmap of grad": lambda f, x, y: grad(lambda a: vmap(grad(f))(a, y).sum())(x),
    "grad of grad of vmap": lambda f, x, y: grad(lambda a: grad(lambda a: vmap(f)(a, y).sum())(a).sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_torch_func(add, transform, device):
    x, y = torch.randn(2, 3, 5, device=device, dtype=torch.float64)

    def derivative(add):
        return TRANSFORMS[transform](lambda a, b: (add(a * a, b) ** 3).sum(), x, y)

    torch.testing.assert_close(derivative(add), derivative(torch.add))


def test_dual_numbers(add, device):
    x, y = torch.randn(2, 5, device=device)
    with forward_ad.dual_level():
        c = forward_ad.unpack_dual(add(forward_ad.make_dual(x, y), y))
        assert torch.equal(c.primal, x + y)
        assert torch.equal(c.tangent, y)


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 0), (-1, 1)])
def test_vmap(add, device, dims):
    x, y = torch.randn(2, 3, 3, device=device)
    x, y = (tensor[0] if dim is None else tensor for tensor, dim in zip((x, y), dims, strict=True))
    assert torch.equal(vmap(add, dims)(x, y), vmap(torch.add, dims)(x, y))


def test_vmap_nested(add, device):
    x, y = torch.randn(2, 4, device=device), torch.randn(3, 4, device=device)
    assert torch.equal(vmap(vmap(add, (None, 0)), (0, None))(x, y), x[:, None] + y)
    needs = x.clone().requires_grad_()
    vmap(vmap(add, (None, 0)), (0, None))(needs, y).sum().backward()
    assert torch.equal(needs.grad, torch.full_like(x, 3))


def test_module(device):
    """Copied and pickled as any module; its gradient comes from the Function by hand."""
    from add2.function import Add2

    for module in (Add2(), copy.deepcopy(Add2()), pickle.loads(pickle.dumps(Add2()))):
        a, b = leaf(7, device=device), leaf(7, device=device)
        c = module(a, b)
        c.sum().backward()
        assert torch.equal(c, a + b)
        assert torch.equal(a.grad, torch.ones_like(a))


def test_by_hand_checks_its_arguments(device):
    from add2.function import Add2

    with pytest.raises(RuntimeError, match=r"b has shape \[2, 3\], expected \[3, 2\]"):
        Add2()(torch.ones(3, 2, device=device), torch.ones(2, 3, device=device))


class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = 1 / (1 + torch.exp(-x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y * (1 - y)


@pytest.mark.parametrize("sigmoid", [Sigmoid.apply, torch.sigmoid], ids=["by hand", "torch.sigmoid"])
def test_check_gradients_in_double_precision(sigmoid):
    """gradcheck compares with (f(x + eps) - f(x - eps)) / 2 eps, and in float32 a small eps drowns in rounding.

    The lesson of the articles: eps 1e-3 passes and 1e-4 fails, for torch's own sigmoid too; in float64 both pass.
    """
    torch.manual_seed(0)
    single = torch.randn(4, 3, requires_grad=True)
    double = single.detach().double().requires_grad_()
    with pytest.warns(UserWarning, match="not a double precision"):
        assert gradcheck(sigmoid, single, eps=1e-3)
    with pytest.warns(UserWarning, match="not a double precision"):
        assert not gradcheck(sigmoid, single, eps=1e-4, raise_exception=False)
    assert gradcheck(sigmoid, double, eps=1e-3)
    assert gradcheck(sigmoid, double, eps=1e-4)


@pytest.mark.parametrize("transform", ["grad", "jacrev", "hessian", "jvp", "vmap of grad"])
@pytest.mark.parametrize("way", ["add2.add2", "torch.ops"])
def test_compiled_torch_func(way, transform):
    add = ways()[way]
    x, y = torch.randn(2, 3, 5, dtype=torch.float64)

    def derivative(add):
        return TRANSFORMS[transform](lambda a, b: (add(a * a, b) ** 3).sum(), x, y)

    torch.compiler.reset()
    found = torch.compile(lambda: derivative(add), fullgraph=True, backend="aot_eager")()
    torch.testing.assert_close(found, derivative(torch.add))
