"""Everything that looks at operators from outside sees add2 as it sees torch.add: modes, tracers, subclasses."""

import ast
import functools
import importlib.util
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

ROOT = Path(__file__).resolve().parents[2]


def tensors(device):
    return torch.randn(2, 3, 4, device=device)


class Functions(TorchFunctionMode):
    def __init__(self):
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __init__(self):
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("mode", [Functions, Dispatched])
def test_modes(lane, device, mode, requires_grad):
    a, b = tensors(device)
    c = torch.empty_like(a)
    with mode() as modes:
        lane.add2(a.clone().requires_grad_(requires_grad), b)
        lane.torch_launch_add2(c, a, b, 12)
    for name in ("add2.add2", "add2.torch_launch_add2"):
        assert {name, f"{name}.default"} & {*modes.seen}  # a TorchFunctionMode may see the packet of overloads
    assert not [name for name in modes.seen if name.endswith("plain")]


def test_selective_checkpoint(lane, device):
    """A policy keyed on the operator matches, with and without its result being saved."""
    a, b = tensors(device)
    for policy, times in ((CheckpointPolicy.MUST_SAVE, 1), (CheckpointPolicy.PREFER_RECOMPUTE, 2)):
        asked = []

        def choose(ctx, op, *args, policy=policy, asked=asked, **kwargs):
            asked.append(op)
            return policy if op is torch.ops.add2.add2.default else CheckpointPolicy.PREFER_RECOMPUTE

        x = a.clone().requires_grad_()
        contexts = functools.partial(create_selective_checkpoint_contexts, choose)
        with Dispatched() as mode:
            y = checkpoint(lambda x: lane.add2(x * x, b).sin(), x, use_reentrant=False, context_fn=contexts)
            y.sum().backward()
        assert torch.ops.add2.add2.default in asked
        assert mode.seen.count("add2.add2.default") == times
        assert torch.allclose(x.grad, (a * a + b).cos() * 2 * a)


@pytest.mark.parametrize("transform", [lambda f: f, torch.func.functionalize], ids=["plain", "functionalize"])
def test_make_fx_then_gradient(lane, device, transform):
    """A graph traced on plain tensors holds the operator itself, so it is differentiable later."""
    a, b = tensors(device)
    graph = make_fx(transform(lambda a, b: lane.add2(a, b) * 2))(a, b)
    assert torch.ops.add2.add2.default in [node.target for node in graph.graph.nodes]
    x = a.clone().requires_grad_()
    graph(x, b).sum().backward()
    assert torch.equal(x.grad, torch.full_like(a, 2))
    gradient = transform(torch.func.grad(lambda a: (lane.add2(a, b) ** 2).sum()))(a)
    torch.testing.assert_close(gradient, 2 * (a + b))


def test_refused_calls_leave_the_version(lane, device):
    """A graph that has saved c is still good after a call that was refused; not after one that wrote."""
    a, c = tensors(device)
    x = a.clone().requires_grad_()
    product = x * c
    with pytest.raises(RuntimeError, match="n is 1000"):
        lane.torch_launch_add2(c, a, a, 1000)
    product.sum().backward()
    assert torch.equal(x.grad, c)
    product = x * c
    lane.torch_launch_add2(c, a, a, 12)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


class Logging(torch.Tensor):
    """A wrapper subclass that logs what reaches it."""

    seen: ClassVar[list[str]] = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(str(function))
        inner = [x.inner if isinstance(x, cls) else x for x in args]
        result = function(*inner, **(kwargs or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result


def test_logging_subclass(lane, device):
    a, b = tensors(device)
    Logging.seen.clear()
    c = lane.add2(Logging(a), Logging(b))
    assert type(c) is Logging
    assert torch.equal(c.inner, a + b)
    lane.torch_launch_add2(c, Logging(b), Logging(b), 12)
    assert torch.equal(c.inner, b + b)
    assert Logging.seen == ["add2.add2.default", "add2.torch_launch_add2.default"]


def test_public_interface_only():
    """What people copy has no private name of torch in it."""
    operator = (ROOT / "kernel" / "add2.cpp").read_text()
    for word in ("torch::stable::detail", "StableIValue", "at::"):
        assert word not in operator
    package = Path(importlib.util.find_spec("add2").origin).parent  # it may be installed
    for path in package.glob("*.py"):
        tree = ast.parse(path.read_text())
        ours = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        assert [name for name in names - ours if name.startswith("_") and not re.fullmatch("__.*__|_check", name)] == []


def test_symbolic_trace(lane, device):
    """Objects with a __torch_function__ need not be tensors."""

    def call(c, a, b):
        lane.torch_launch_add2(c, a, b, 12)
        return lane.add2(a, b)

    graph = torch.fx.symbolic_trace(call)
    a, b = tensors(device)
    c = torch.empty_like(a)
    assert torch.equal(graph(c, a, b), a + b)
    assert torch.equal(c, a + b)

    class Number:
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return "seen"

    assert lane.add2(a, Number()) == "seen"
    assert lane.torch_launch_add2(a, a, Number(), 3) == "seen"


def test_kernels_that_a_user_registers(lane, device):
    """Later ones, for CPU, CUDA or meta, are called, as with torch's own operators."""
    a, _ = tensors(device)
    for key, x in ((device.upper(), a), ("Meta", a.to("meta"))):
        with torch.library._scoped_library("add2", "FRAGMENT") as library:
            for overload in ("add2", "add2.plain"):  # the function add2.add2 calls the second one
                library.impl(overload, lambda a, b: a.new_full((1,), 7), key, allow_override=True)
            assert lane.add2(x, x).shape == (1,)
        assert lane.add2(x, x).shape == (3, 4)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("requires_grad", [False, True])
def test_jit_trace(lane, device, requires_grad):
    """The graph has the operator: a Python function, such as an autograd.Function, could not be saved."""
    a, b = tensors(device)
    traced = torch.jit.trace(lambda a, b: lane.add2(a, b) * 2, (a.clone().requires_grad_(requires_grad), b))
    assert torch.equal(traced(b, b), (b + b) * 2)
    assert [node.kind() for node in traced.graph.nodes() if "add2" in node.kind()] == ["add2::add2"]
    x = a.clone().requires_grad_()
    traced(x, b).sum().backward()
    assert torch.equal(x.grad, torch.full_like(a, 2))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_graph_of_torch_compile(lane, device, requires_grad):
    """A backend gets the operators themselves."""
    a, b = tensors(device)

    def call(a, b):
        c = torch.zeros_like(b)
        lane.torch_launch_add2(c, b, b, 12)
        return lane.add2(a, c)

    def backend(graph, inputs):
        names.update(str(node.target) for node in graph.graph.nodes)
        return graph

    names = set()
    torch.compiler.reset()
    torch.compile(call, backend=backend, fullgraph=True)(a.clone().requires_grad_(requires_grad), b)
    found = {name.removesuffix(".default") for name in names if name.startswith("add2.")}
    assert found == {"add2.add2", "add2.torch_launch_add2"}
