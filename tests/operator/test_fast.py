"""add2/fast.py: taken by plain calls, by no others, and needed by none."""

import importlib.util
import itertools
import random
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functionalize, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

UNLISTED = ("Tracer", "DeferredInit", "Fake", "VmapMode")  # keys that torch._C.DispatchKey has no name for


def test_plain_calls_take_it(add2, device):
    """They reach the overload `plain`, and at once its kernel: nothing in between leads back to the operator."""
    a, b, c = torch.randn(3, 4, device=device)
    seen = []
    with torch.library._scoped_library("add2", "FRAGMENT") as library:
        for name in ("add2", "torch_launch_add2"):
            library.impl(
                f"{name}.plain", lambda *arguments: seen.append(arguments), device.upper(), allow_override=True
            )
        for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with context():
                add2.torch_launch_add2(c, a, b, 4)
        assert len(seen) == 3
    with torch.library._scoped_library("add2", "FRAGMENT") as library:
        library.impl("add2.plain", lambda a, b: seen.append(a) or a.clone(), device.upper(), allow_override=True)
        for x in (a, a.clone().requires_grad_()):
            add2.add2(x, b)
        assert len(seen) == 5


def watchers(x):
    """The dispatch keys, by name, at which something may see a call: all but those that each call with x visits, and
    those of devices (and of gradients there) and of tensors that are not dense."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    visited = (torch._C._dispatch_keys(x) | torch._C._dispatch_tls_local_include_set()) - excluded
    for name in [*torch._C.DispatchKey.__members__, *UNLISTED]:
        if name.startswith(("Autograd", "Composite", "Dense", "NestedTensor", "Quantized", "Sparse")):
            continue
        try:
            key = torch._C._dispatch_key_parse(name)
        except RuntimeError:
            continue  # a mark such as StartOfDenseBackends
        if int(key) < int(torch._C.DispatchKey.StartOfDenseBackends) and not visited.has(key):
            yield name, key


def test_every_dispatch_key(add2, device):
    """Whatever may see the operator sees it in the function, too: known modes and those of a later torch."""
    a, b, c = torch.randn(3, 4, device=device)
    calls = {"add2": (a, b), "torch_launch_add2": (c, a, b, 4)}
    results = {"add2": torch.zeros(4, device=device), "torch_launch_add2": None}
    met = []
    for (name, key), call in itertools.product(watchers(a), calls):
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"add2::{call}", name):
            continue  # ours, such as autocast's: torch would not forget one that takes its place in a test
        seen = []

        def see(*arguments, seen=seen, call=call):
            seen.append(call)
            return results[call]

        with torch.library._scoped_library("add2", "FRAGMENT") as library:
            library.impl(call, see, name, allow_override=True)
            with torch._C._IncludeDispatchKeyGuard(key):
                getattr(torch.ops.add2, call).default(*calls[call])
                if seen:  # a call with these tensors gets there
                    getattr(add2, call)(*calls[call])
                    assert len(seen) == 2, name
                    met.append(name)
    for name in (
        "Python",
        "PreDispatch",
        "PythonDispatcher",
        "Functionalize",
        "FuncTorchDynamicLayerFrontMode",
        "Tracer",
    ):
        assert met.count(name) == 2


class SawPlainError(Exception):
    """A mode or a graph has the overload `plain`."""


def look(words):
    if "plain" in str(words):
        raise SawPlainError


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        look(function)
        return function(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        look(function)
        return function(*args, **(kwargs or {}))


def traced(f, **options):
    def call(a, b):
        graph = make_fx(f, **options)(a, b)
        look(graph.code)
        return graph(a, b)

    return call


def under(f, context):
    def call(a, b):
        with context():
            return f(a, b)

    return call


def with_gradient(f):
    def call(a, b):
        x, y = (t.detach().clone().requires_grad_() for t in (a, b))
        return sum(torch.autograd.grad(f(x, y).sin().sum(), (x, y)))

    return call


def with_tangent(f):
    def call(a, b):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(a, b), b)).tangent

    return call


TRANSFORMS = {
    "make_fx": traced,
    "make_fx, pre_dispatch": lambda f: traced(f, pre_dispatch=True),
    "functionalize": functionalize,
    "vmap": lambda f: lambda a, b: vmap(f, (0, None))(torch.stack((a, b)), b),
    "grad": lambda f: lambda a, b: sum(grad(lambda x, y: f(x, y).sin().sum(), (0, 1))(a, b)),
    "jvp": lambda f: lambda a, b: jvp(f, (a, b), (b, a))[1],
    "backward": with_gradient,
    "make_dual": with_tangent,
    "checkpoint": lambda f: lambda a, b: checkpoint(f, a, b, use_reentrant=False),
    "no_grad": lambda f: under(f, torch.no_grad),
    "inference_mode": lambda f: under(f, torch.inference_mode),
    "function mode": lambda f: under(f, Functions),
    "dispatch mode": lambda f: under(f, Dispatched),
}


def outcome(names, f, a, b):
    """The result of f under the transforms, the first one outermost; or the type of the error."""
    for name in reversed(names):
        f = TRANSFORMS[name](f)
    try:
        with torch.enable_grad():  # make_fx(pre_dispatch=True) of torch.func.grad leaves it off
            return f(a, b)
    except Exception as error:
        return type(error)


def assert_same(found, right, names):
    if isinstance(right, torch.Tensor):
        assert isinstance(found, torch.Tensor), (names, found)
        torch.testing.assert_close(found, right, msg=str(names))
        assert found.requires_grad == right.requires_grad, names
    else:
        assert found is right, names


def test_random_transforms(add2, device):
    """The function under up to three transforms: as the operator itself. add2 also as torch's own sum, wherever torch
    has one; some of these chains torch refuses."""
    chance, counts = random.Random(0), {"right": 0, "refused": 0}
    for _ in range(60):
        names = chance.choices([*TRANSFORMS], k=chance.choice([1, 2, 2, 3]))
        dtype = chance.choice([torch.float32, torch.float64])
        shape = [chance.randrange(1, 4) for _ in range(chance.randrange(3))]
        a, b = torch.randn(2, *shape, dtype=dtype, device=device)
        b = chance.choice([b, b.t() if b.dim() == 2 and b.shape[0] == b.shape[1] else b])

        def launch(op, a, b):
            c = torch.zeros_like(a, memory_format=torch.contiguous_format)
            op(c, a, b, a.numel())
            return c * 2

        ours, operator, right = (outcome(names, f, a, b) for f in (add2.add2, torch.ops.add2.add2.default, torch.add))
        assert_same(ours, operator, names)
        if isinstance(right, torch.Tensor):
            assert_same(ours, right, names)
        counts["right" if isinstance(ours, torch.Tensor) else "refused"] += 1
        functions = (add2.torch_launch_add2, torch.ops.add2.torch_launch_add2.default)
        assert_same(*(outcome(names, lambda a, b, f=f: launch(f, a, b), a, b) for f in functions), names)
    assert min(counts.values()) > 5, counts


def test_torch_that_refuses_a_key(add2):
    """Where the file cannot see to it that every mode is asked, its functions are the plain ones."""
    spec = importlib.util.spec_from_file_location("add2.fast_again", Path(add2.__file__).with_name("fast.py"))
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)  # torch refuses to register anything twice
    assert (again.add2, again.torch_launch_add2) == (add2.ops.add2, add2.ops.torch_launch_add2)
    assert add2.add2 is not add2.ops.add2


@pytest.mark.thorough
def test_imported_while_traced(library, run):
    """By a function that torch.export or make_fx runs: the lane is set up, and the graph has nothing of that."""
    printed = run("-c", TRACED_IMPORT, library).stdout
    assert printed == "['add2.add2.default'] add2.fast\n"


@pytest.mark.parametrize("transform", [lambda f: f, functionalize, vmap], ids=["alone", "functionalize", "vmap"])
def test_graph_before_dispatch(lane, device, transform):
    """make_fx(pre_dispatch=True) records what autograd needs later: the operators themselves. A transform may be run
    over the graph."""
    a, b = torch.randn(2, 3, 4, device=device)

    def call(a, b):
        c = torch.zeros_like(a)
        lane.torch_launch_add2(c, a, b, a.numel())
        return lane.add2(a, b) * c

    graph = make_fx(call, pre_dispatch=True)(a, b)
    names = {str(node.target) for node in graph.graph.nodes}
    assert {"add2.add2.default", "add2.torch_launch_add2.default"} <= names
    with pytest.raises(RuntimeError, match="has no derivative"):
        graph(a.clone().requires_grad_(), b)
    graph = make_fx(lambda a, b: lane.add2(a, b) * 2, pre_dispatch=True)(a, b)
    x = a.clone().requires_grad_()
    transform(graph)(x, b).sum().backward()
    assert torch.equal(x.grad, torch.full_like(a, 2))
    product = x * (c := torch.zeros_like(a))
    make_fx(lambda c, a: lane.torch_launch_add2(c, a, a, 12), pre_dispatch=True)(c, a)(c, a)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


TRACED_IMPORT = """
import sys, torch
from torch.fx.experimental.proxy_tensor import make_fx
torch.ops.load_library(sys.argv[1])
def call(x):
    import add2
    return add2.add2(x, x)
graph = make_fx(call, pre_dispatch=True)(torch.ones(3))
import add2
print([str(x.target) for x in graph.graph.nodes if "add2.default" in str(x.target) or "keys" in str(x.target)], end=" ")
print(add2.add2.__module__)
"""
IMPORT = """
import sys, torch
torch.ops.load_library(sys.argv[1])
import add2
print(add2.add2.__module__, add2.__file__)
"""


@pytest.mark.thorough
def test_without_the_file(library, run, project):
    """add2/fast.py and its import are deleted: nothing else needs them."""
    (project / "add2/fast.py").unlink()
    init = project / "add2/__init__.py"
    lines = [line for line in init.read_text().splitlines(keepends=True) if "from .fast import" not in line]
    init.write_text("".join(lines))
    where = {"root": project, "cwd": project, "PYTHONPATH": str(project)}
    assert run("-c", IMPORT, library, **where).stdout.strip() == f"add2.ops {init}"
    tests = [f"tests/operator/test_{name}.py" for name in ("watched", "gradient", "fast")]
    of_the_file = ["plain_calls_take_it", "torch_that_refuses_a_key", "imported_while_traced", "without_the_file"]
    left_out = [f"{tests[2]}::test_{name}" for name in of_the_file] + [f"{tests[1]}::test_finite_differences"]
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", *(f"--deselect={name}" for name in left_out)]
    # With a space instead of =, pytest would look for its rootdir next to the library.
    assert " passed" in run("-m", "pytest", *options, f"--library={library}", *tests, **where).stdout
