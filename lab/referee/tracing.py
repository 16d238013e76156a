"""Tracing: fake kernels and torch.compile."""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from .derivatives import tangents_of
from .gradients import THEIRS, function_of, gradients_of, leaves_of, loss, weight
from .operator import Operator, copies, get, places_of_tensors, put
from .registry import Trials, check, trial
from .trial import (
    NotApplicable,
    accepts,
    cast,
    compare,
    filled,
    floating,
    groups_of,
    places_with_gradient,
    require,
    resize,
    size_of,
)
from .views import VIEWS, view_of


def _strides(x: Tensor) -> list:
    """Those that matter: of dimensions with more than one element."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1] if x.numel() else []


def compare_with_fake(fake: Sequence[Tensor], real: Sequence[Tensor]) -> None:
    """Number, shapes, dtypes and strides; the device too, unless the fake one is meta."""
    require(len(fake) == len(real), f"the fake kernel returns {len(fake)} tensors, the real one {len(real)}")
    for k, (x, y) in enumerate(zip(fake, real, strict=True)):
        require(x.dtype == y.dtype, f"result {k} is {y.dtype}; the fake kernel says {x.dtype}")
        require(x.dim() == y.dim(), f"result {k} has {y.dim()} dimensions; the fake kernel says {x.dim()}")
        known = [type(size) is int for size in x.shape]
        for size, right, is_known in zip(x.shape, y.shape, known, strict=True):
            is_same = not is_known or size == right
            require(is_same, f"result {k} has shape {[*y.shape]}; the fake kernel says {[*x.shape]}")
        if all(known):
            message = f"result {k} has strides {[*y.stride()]}; the fake kernel says {[*x.stride()]}"
            require(_strides(x) == _strides(y), message)
        if x.device.type != "meta":
            require(x.device == y.device, f"result {k} is on {y.device}; the fake kernel says {x.device}")


def fake_is_like_real(
    operator: Operator,
    device: str,
    dtype: torch.dtype | None,
    view: str | None,
    places: list,
    group: str | None,
    size: int,
) -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # takes a second

    inputs = operator.fresh(device)
    inputs = inputs if group is None else resize(operator, inputs, group, size)
    inputs = inputs if dtype is None else cast(inputs, dtype)
    for place in places if view else ():
        put(inputs, place, view_of(get(inputs, place), view or ""))
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False) as mode:
        fake_inputs = tree_map(
            lambda x: mode.from_tensor(x, static_shapes=True) if isinstance(x, Tensor) else x, inputs
        )
        fake = operator.run(fake_inputs)
    compare_with_fake(fake, operator.run(inputs))


def _fake_trials(operator: Operator, device: str, function: Callable) -> Trials:
    inputs = operator.fresh(device)
    some = functools.partial(trial, function, dtype=None, view=None, places=[], group=None, size=0)
    yield some()
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        if accepts(operator, cast(inputs, dtype)):
            yield some(dtype=dtype)
    for group in groups_of(operator, inputs):
        for size in (0, 1, 2, 5, 65):
            if accepts(operator, resize(operator, inputs, group, size)):
                yield some(group=group, size=size)
    places = [place for place in places_of_tensors(inputs) if place not in operator.written()]
    for view in VIEWS:
        if view in ("rows far apart", "negative bit", "conjugate bit"):
            continue
        fitting = [place for place in places if view_of(get(inputs, place), view) is not None]
        for several in [[place] for place in fitting] + [fitting] * (len(fitting) > 1):
            viewed = copies(inputs)
            for place in several:
                put(viewed, place, view_of(get(viewed, place), view))
            if _is_accepted(operator, viewed):
                yield some(view=view, places=several)


def _is_accepted(operator: Operator, inputs: Sequence) -> bool:
    try:
        operator.run(inputs)
    except Exception:
        return False
    return True


@check(
    "give the fake kernel's result the shape, dtype, device and strides of the real one: same call, same layout",
    "5_your_own",
    opcheck=("test_faketensor", "test_aot_dispatch_dynamic"),
    because_of=("values", "aliases", "plain_results"),
)
def fake(operator: Operator, device: str) -> Trials:
    """Does the fake kernel say what the real one returns: shape, dtype, device, strides?"""
    yield from _fake_trials(operator, device, fake_is_like_real)


def meta_is_like_real(operator: Operator, device: str, group: str | None, size: int) -> None:
    inputs = operator.fresh(device)
    inputs = inputs if group is None else resize(operator, inputs, group, size)
    meta = [tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, x) for x in inputs]
    found = operator.run(meta)
    compare_with_fake(found, operator.run(inputs))


@check("register a fake kernel", "3_operator", because_of=("fake",), opcheck=("test_faketensor",))
def meta(operator: Operator, device: str) -> Trials:
    """Does a call with tensors on the meta device give what a real one does, without values?"""
    inputs = operator.fresh(device)
    yield trial(meta_is_like_real, group=None, size=0)
    for group in groups_of(operator, inputs):
        for size in (1, 2, 7):
            if accepts(operator, resize(operator, inputs, group, size)):
                yield trial(meta_is_like_real, group=group, size=size)


def contents_are_not_baked_in(operator: Operator, device: str) -> None:
    """A trace of one call, replayed with other contents."""
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs = operator.fresh(device)
    graph = make_fx(lambda *xs: operator.run(list(xs)))(*copies(inputs))
    for seed in (0, 1):
        others = operator.fresh(device, seed)
        for place in floating(others):
            get(others, place).mul_(1 + 0.5 * seed)
        right = [x.clone() for x in operator.run(copies(others))]
        compare(operator, list(graph(*others)), right, what="a trace replayed with other contents; result")


@check(
    "decide nothing by the contents of a tensor in Python",
    "6_kinds",
    because_of=("values", "repeated", "modes_and_subclasses"),
    of_random=False,
)
def traced(operator: Operator, device: str) -> Trials:
    """Does a trace hold for other contents?"""
    yield trial(contents_are_not_baked_in)


def compiled_is_the_same(operator: Operator, device: str, backend: str, has_neighbours: bool) -> None:
    """Results and gradients; between other functions of torch, whose memory the compiler plans together with it."""
    inputs = operator.fresh(device)
    places = [place for place in floating(inputs) if place not in operator.written()]

    def program(*xs: Tensor) -> list[Tensor]:
        if not has_neighbours:
            return operator.run(filled(operator, inputs, places, xs))
        results = operator.run(filled(operator, inputs, places, [2 * x for x in xs]))
        return [*results, *(3 * y for y in results if y.is_floating_point())]

    compiled = torch.compile(program, backend=backend, fullgraph=True)
    for seed in (0, 1):
        others = operator.fresh(device, seed)
        xs = [get(others, place) for place in places]
        right = [x.detach().clone() for x in program(*xs)]
        compare(operator, [x.detach() for x in compiled(*xs)], right, factor=5, what="compiled; result")
    with_gradient = places_with_gradient(operator, inputs)
    if with_gradient:
        function = function_of(operator, inputs, with_gradient)
        again = torch.compile(lambda *xs: tuple(y * 2 for y in function(*xs)), backend=backend, fullgraph=True)
        right = gradients_of(lambda *xs: [y * 2 for y in function(*xs)], leaves_of(inputs, with_gradient))
        found = gradients_of(again, leaves_of(inputs, with_gradient))
        compare(operator, found, right, factor=20, what="compiled; gradient")


@check(
    "let the schema say what is written and what is new: the compiler plans memory by it",
    "6_kinds",
    because_of=(
        "backward_twice",
        "values",
        "aliases",
        "writes",
        "fake",
        "gradients",
        "lost_gradients",
        "stale",
        "repeated",
        "traced",
    ),
    opcheck=("test_aot_dispatch_dynamic",),
)
def traced_compiled(operator: Operator, device: str) -> Trials:
    """Is it right, with its gradient, through torch.compile's tracer (backend aot_eager)?"""
    for has_neighbours in (False, True):
        yield trial(compiled_is_the_same, backend="aot_eager", has_neighbours=has_neighbours)


@check(
    "let the schema say what is written and what is new: the compiler plans memory by it",
    "6_kinds",
    because_of=(
        "backward_twice",
        "values",
        "aliases",
        "writes",
        "fake",
        "gradients",
        "lost_gradients",
        "traced",
        "traced_compiled",
    ),
    compiles=True,
    seconds=240,
    of_random=False,
)
def compiled(operator: Operator, device: str) -> Trials:
    """Is it right, with its gradient, by torch.compile's default backend?"""
    yield trial(compiled_is_the_same, backend="inductor", has_neighbours=True)


def compiled_clone_is_right(operator: Operator, device: str, place: tuple, other: tuple) -> None:
    """The written argument is a clone of one that is read. The compiler leaves such a clone out."""
    inputs = operator.fresh(device)

    def program(x: Tensor) -> Tensor:
        some = [list(y) if isinstance(y, list) else y for y in inputs]
        source = x * 2
        put(some, other, source)
        put(some, place, source.clone())
        target = get(some, place)
        operator.call(*some)
        return target

    x = get(inputs, other)
    right = program(x).clone()
    found = torch.compile(program, fullgraph=True)(x)
    compare(operator, [found], [right], what=f"compiled, input {place[0]} is a clone of input {other[0]}; result")


@check(
    "refuse arguments that share memory: the compiler makes two arguments one (pytorch issue 198031)",
    "6_kinds",
    because_of=("values", "overlaps"),
    compiles=True,
    seconds=120,
)
def compiled_clones(operator: Operator, device: str) -> Trials:
    """Is it right where the compiler passes one tensor for two arguments?"""
    inputs = operator.fresh(device)
    if not operator.written():
        raise NotApplicable("writes none of its inputs")
    for place in operator.written():
        for other in places_of_tensors(inputs):
            x, y = get(inputs, place), get(inputs, other)
            is_alike = (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
            if other not in operator.written() and is_alike:
                yield trial(compiled_clone_is_right, place=place, other=other)


def sizes_are_not_baked_in(operator: Operator, device: str, group: str) -> None:
    """Compiled once with symbols for sizes, then called with others."""
    from torch._dynamo.backends.registry import lookup_backend

    inputs = operator.fresh(device)
    places = places_of_tensors(inputs)
    graphs, asked = [], 0

    def backend(graph, example_inputs):
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, example_inputs)

    compiled = torch.compile(
        lambda *xs: operator.run(filled(operator, inputs, places, xs)),
        backend=backend,
        fullgraph=True,
        dynamic=True,
    )
    now = size_of(operator, inputs, group)[0]
    for size in dict.fromkeys((max(now, 2), 2 * now + 3, 3, 2, 5)):
        others = resize(operator, inputs, group, size)
        if not accepts(operator, others):
            continue
        right = [x.clone() for x in operator.run(copies(others))]
        found = compiled(*(get(others, place) for place in places))
        compare(operator, list(found), right, factor=5, what=f"compiled with dynamic=True, {group} is {size}; result")
        asked += 1
    is_one_call = len(operator.calls(operator.fresh(device))) == 1  # a loop of calls in Python depends on the size
    message = f"compiled with dynamic=True, and compiled anew for each of {asked} sizes of {group}"
    require(not is_one_call or asked < 4 or len(graphs) < asked, message)


def sizes_may_depend_on_data(operator: Operator, device: str, group: str) -> None:
    """A size that only the run knows: from an item(), and from a mask."""
    inputs = operator.fresh(device)
    places = places_of_tensors(inputs)
    pairs = groups_of(operator, inputs)[group]

    def cut(k: Tensor, *xs: Tensor) -> list[Tensor]:
        some = filled(operator, inputs, places, [x.clone() for x in xs])
        for place in places:
            for i, dim in pairs:
                if place[0] == i:
                    put(some, place, get(some, place).narrow(dim, 0, k.item()).clone())
        return operator.run(some)

    xs = [get(inputs, place) for place in places]
    k = torch.tensor(size_of(operator, inputs, group)[0] - 1, device=device)
    right = [x.clone() for x in cut(k, *xs)]
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        found = torch.compile(cut, fullgraph=True, backend="aot_eager")(k, *xs)
    compare(operator, list(found), right, factor=5, what=f"{group} depends on data; result")


@check(
    "let the fake kernel compute with symbols: no int(), no if; torch._check() where it must hold",
    "3_operator",
    because_of=("values", "fake", "odd_sizes", "traced", "traced_compiled"),
    opcheck=("test_aot_dispatch_dynamic",),
)
def dynamic_sizes(operator: Operator, device: str) -> Trials:
    """Is one compiled graph right for other sizes, and for sizes that depend on data?"""
    inputs = operator.fresh(device)
    for group in groups_of(operator, inputs):
        yield trial(sizes_are_not_baked_in, group=group)
        if size_of(operator, inputs, group)[0] > 2:
            yield trial(sizes_may_depend_on_data, group=group)


def calls_are_not_removed(operator: Operator, device: str) -> None:
    """The compiler removes an operator whose results are not used, and that writes nothing."""
    inputs = operator.fresh(device)
    calls = operator.calls(copies(inputs))
    if not calls or any(function._schema.returns or function._schema.is_mutable for function, *_ in calls):
        raise NotApplicable("returns or writes something")
    count = len(calls)
    graphs = []

    def backend(graph, example_inputs):
        from torch._dynamo.backends.common import aot_autograd

        def keep(traced, _):
            traced.graph.eliminate_dead_code()
            graphs.append(traced)
            return traced.forward

        return aot_autograd(fw_compiler=keep)(graph, example_inputs)

    places = places_of_tensors(inputs)

    def program(*xs: Tensor) -> Tensor:
        operator.call(*filled(operator, inputs, places, xs))
        return xs[0] + 1

    torch.compile(program, backend=backend, fullgraph=True)(*(get(inputs, place) for place in places))
    left = sum(
        getattr(node.target, "_overloadpacket", None) is operator.packet for g in graphs for node in g.graph.nodes
    )
    require(left >= count, f"of {count} calls that return nothing and write nothing, the compiler keeps {left}")


@check("declare what is written, or register an effect", "6_kinds", because_of=("writes",))
def effects(operator: Operator, device: str) -> Trials:
    """Does the compiler keep a call that returns nothing?"""
    yield trial(calls_are_not_removed)


def compiled_derivative_is_right(operator: Operator, device: str, transform: str) -> None:
    """A transform inside of the compiled function; compared with the same without torch.compile, or autograd."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    function, xs = function_of(operator, inputs, places), [get(inputs, place) for place in places]
    directions = [weight(x) for x in xs]

    def grad(*xs: Tensor) -> list[Tensor]:
        return list(torch.func.grad(loss(function), tuple(range(len(xs))))(*xs))

    def vmap_of_grad(*xs: Tensor) -> list[Tensor]:
        many = [torch.stack([x, -2 * x]) for x in xs]
        return list(torch.vmap(torch.func.grad(loss(function), tuple(range(len(xs)))))(*many))

    def tangent(way: str, *xs: Tensor) -> list[Tensor]:
        return tangents_of(function, xs, directions, way)

    programs = {"grad": grad, "vmap of grad": vmap_of_grad}
    programs |= {way: functools.partial(tangent, way) for way in ("jvp", "make_dual")}
    program = programs[transform]
    if transform == "grad":
        right = gradients_of(function, leaves_of(inputs, places))
    elif operator.reference is not None and transform in ("jvp", "make_dual"):
        right = tangents_of(function_of(operator, inputs, places, THEIRS), xs, directions, transform)
    else:
        right = program(*xs)
    found = torch.compile(program, backend="aot_eager", fullgraph=True)(*xs)
    what = f"compiled {transform}; derivative"
    compare(operator, list(found), [x.detach() for x in right], factor=50, what=what)


@check(
    "refuse or compute derivatives while torch.compiler.is_compiling(), too",
    "4_gradients",
    because_of=("gradients", "tangents", "transforms", "traced_compiled"),
    seconds=120,
)
def compiled_derivatives(operator: Operator, device: str) -> Trials:
    """Are derivatives inside of a compiled function right, or refused: torch.func, make_dual?"""
    if not places_with_gradient(operator, operator.fresh(device)):
        raise NotApplicable("no input has a gradient")
    for transform in ("grad", "vmap of grad", "jvp", "make_dual"):
        yield trial(compiled_derivative_is_right, transform=transform)
