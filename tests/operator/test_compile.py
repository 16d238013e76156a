"""The compiler: opcheck, torch.compile, torch.export. (test_examples.py has an AOTInductor package.)"""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.t(), lambda x: x[:0]], ids=["plain", "strided", "empty"])
def test_opcheck_add2(device, requires_grad, view):
    a, b = (view(torch.randn(4, 6, device=device)) for _ in range(2))
    opcheck(torch.ops.add2.add2.default, (a.detach().requires_grad_(requires_grad), b))


def test_opcheck_torch_launch_add2(device):
    a, b, c = torch.randn(3, 24, device=device)
    opcheck(torch.ops.add2.torch_launch_add2.default, (c, a, b, 24))
    opcheck(torch.ops.add2.torch_launch_add2.default, (c, a, b, 7))


def model(a, b):
    import add2

    return add2.add2(a * 2, b).relu() + add2.add2(b, a)


def expected(a, b):
    return (a * 2 + b).relu() + (b + a)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(device, dynamic):
    """No graph break, forward and backward, new shapes; the same bits as eager."""
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    for n in (6, 9, 1):
        a, b = (torch.randn(3, n, device=device, requires_grad=True) for _ in range(2))
        result = compiled(a, b)
        assert torch.equal(result, expected(a, b))
        found = torch.autograd.grad(result.sum(), (a, b))
        wanted = torch.autograd.grad(expected(a, b).sum(), (a, b))
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_torch_launch_add2(lane, device, dynamic):
    """An operator that writes into its argument: the graph must keep the order of writing and reading."""

    def launch(a, out):
        c = torch.empty_like(a)
        lane.torch_launch_add2(c, a, a, a.numel())
        d = c + 1
        lane.torch_launch_add2(out[1], a, d, a.numel() - 1)  # a part of a view of an argument
        if not dynamic:  # with a symbol as n torch fails where c was copied first: pytorch issue 181735
            lane.torch_launch_add2(c, c, c, a.numel())
        return c, d, out.sum(0)

    torch.compiler.reset()
    compiled = torch.compile(launch, fullgraph=True, dynamic=dynamic)
    for n in (10, 13):
        a, out = torch.randn(n, device=device), torch.zeros(3, n, device=device)
        c, d, total = compiled(a, out)
        assert torch.equal(c, (2 if dynamic else 4) * a)
        assert torch.equal(d, 2 * a + 1)
        assert torch.equal(out[1, :-1], a[:-1] + d[:-1])
        assert torch.equal(total, out[1])


def test_compiled_refusals(lane, device):
    """What eager calls refuse is refused by compiled ones."""
    a, c = torch.randn(2, 5, device=device)
    x = a.clone().requires_grad_()
    calls = [lambda: lane.torch_launch_add2(c, x, a, 5)]
    calls += [lambda: torch.func.jvp(lambda t: lane.torch_launch_add2(c, t, a, 5), (a,), (a,))]
    for call in calls:
        torch.compiler.reset()
        with pytest.raises(Exception, match=r"no derivative|requires grad"):
            torch.compile(call)()


def test_compiled_autograd(lane, device):
    """An eager graph with add2 in it, run backward by torch.compile."""
    x, b = torch.randn(2, 3, 4, device=device)
    x.requires_grad_()
    loss = (lane.add2(x * x, b) * b).sum()
    torch.compiler.reset()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: loss.backward(), backend="eager")()
    torch.testing.assert_close(x.grad, 2 * x.detach() * b)


class Model(torch.nn.Module):
    def forward(self, a, b):
        return model(a, b)


def exported(device):
    dim = torch.export.Dim("n", min=2, max=1000)
    return torch.export.export(Model(), (*torch.randn(2, 2, 6, device=device),), dynamic_shapes=({1: dim}, {1: dim}))


def test_export(device, tmp_path):
    torch.export.save(exported(device), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    assert "torch.ops.add2.add2.default" in program.graph_module.code
    for n in (6, 11):
        a, b = (torch.randn(2, n, device=device, requires_grad=True) for _ in range(2))
        found, wanted = program.module()(a, b), expected(a, b)
        assert torch.equal(found, wanted)
        assert torch.equal(torch.autograd.grad(found.sum(), a)[0], torch.autograd.grad(wanted.sum(), a)[0])


def test_export_torch_launch_add2(add2, device):
    class Launch(torch.nn.Module):
        def forward(self, c, a):
            add2.torch_launch_add2(c, a, a, a.numel())
            return c * 2

    a, c = torch.randn(2, 6, device=device)
    program = torch.export.export(Launch(), (c, a))
    found = program.module()(c, a)
    assert torch.equal(c, a + a)
    assert torch.equal(found, 4 * a)


def test_sizes_without_a_value(add2, device):
    """Sizes that depend on the tensors' values: x[mask], k.item()."""
    x, mask = torch.randn(2, 10, device=device), torch.arange(10, device=device) % 2 == 0

    def select(x, y, mask):
        return add2.add2(x[:, mask], y[:, ~mask]) * 2

    def count(x, k):
        n = k.item()
        c = torch.zeros(10, device=x.device)
        add2.torch_launch_add2(c, x[0], x[1], n)
        return c, add2.add2(x[0, :n], x[1, :n])

    torch.compiler.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        found = torch.compile(select, fullgraph=True)(x, x, mask)
        assert torch.equal(found, 2 * (x[:, mask] + x[:, ~mask]))
        c, part = torch.compile(count, fullgraph=True)(x, torch.tensor(7, device=device))
    assert torch.equal(c[:7], x[0, :7] + x[1, :7])
    assert torch.equal(part, c[:7])
    assert (c[7:] == 0).all()


@pytest.mark.parametrize("dynamic", [True, None])
def test_dynamic_lengths(add2, device, dynamic):
    """Compiled with changing lengths, torch_launch_add2 is compiled once or twice: n is a SymInt."""

    def call(c, a, b):
        add2.torch_launch_add2(c, a, b, a.numel())
        return c * 2

    torch.compiler.reset()
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(call, dynamic=dynamic, fullgraph=True, backend=counter)
    for n in (5, 7, 9, 11):
        a, b = torch.randn(2, n, device=device)
        assert torch.equal(compiled(torch.empty_like(a), a, b), (a + b) * 2)
    assert counter.frame_count <= 2


def test_fake_and_meta(add2, device, dtype):
    for mode, place in ((FakeTensorMode(), device), (torch.device("meta"), "meta")):
        with mode:
            a = torch.empty(3, 4, device=place, dtype=dtype)
            c = add2.add2(a, a)
            assert (c.shape, c.dtype, c.device.type) == ((3, 4), dtype, place)
            assert add2.torch_launch_add2(c, a, a, 12) is None
            assert add2.torch_launch_add2(c, c, c, 12) is None
            assert add2.torch_launch_add2(a[:1], a[1:], a[:1], 3) is None  # in place, and no memory shared with b
