"""Writing: what the schema says of memory that is written, or shared."""

import torch
from torch.utils._pytree import tree_leaves

from .gradients import function_of, gradients_of, leaves_of
from .operator import Operator, Spy, bound_arguments, copies, get, places_of_tensors, put
from .registry import Trials, check, trial
from .trial import (
    NotApplicable,
    cast,
    compare,
    groups_of,
    places_with_gradient,
    require,
    resize,
    resized_or_not,
    same_bits,
    size_of,
    small_sizes,
)
from .views import REPEATING, VIEWS, gap, view_of


def written_view_is_right(operator: Operator, device: str, place: tuple, view: str) -> None:
    """The view gets the values, and the memory around it keeps its own."""
    inputs = operator.fresh(device)
    plain = copies(inputs)
    right = [x.clone() for x in operator.run(plain)]
    target = view_of(get(inputs, place), view)
    assert target is not None
    around = torch.tensor([], dtype=target.dtype, device=target.device).set_(target.untyped_storage())
    before = around.clone()
    put(inputs, place, target)
    found = operator.run(inputs)
    compare(operator, found, right, what=f"input {place[0]} is a view ({view}); result")
    target.fill_(gap(target))
    before.as_strided(target.shape, target.stride(), target.storage_offset()).fill_(gap(target))
    require(same_bits([around], [before]), f"memory around input {place[0]}, a view ({view}), was written")


@check("refuse an output that is not contiguous, or use its strides", "3_operator", because_of=("values",))
def written_views(operator: Operator, device: str) -> Trials:
    """Is a view that the operator writes written as what it is, and nothing around it?"""
    inputs = operator.fresh(device)
    if not operator.written():
        raise NotApplicable("writes none of its inputs")
    for place in operator.written():
        for view in VIEWS:
            is_plain = view not in REPEATING and view not in ("negative bit", "conjugate bit", "rows far apart")
            if is_plain and view_of(get(inputs, place), view) is not None:
                yield trial(written_view_is_right, place=place, view=view)


def metadata_stays(operator: Operator, device: str, group: str, size: int, place: tuple) -> None:
    """A written argument of another size is refused, or keeps its shape and is right."""
    inputs = operator.fresh(device)
    put(inputs, place, get(resize(operator, inputs, group, size), place))
    x = get(inputs, place)
    before = (x.shape, x.stride(), x.untyped_storage().data_ptr(), x.untyped_storage().nbytes())
    operator.run(inputs)
    after = (x.shape, x.stride(), x.untyped_storage().data_ptr(), x.untyped_storage().nbytes())
    require(
        before == after, f"input {place[0]}, which is written, has been resized from {[*before[0]]} to {[*after[0]]}"
    )


@check("refuse an output of the wrong shape: the compiler has planned its memory", "6_kinds", because_of=("values",))
def resized_outputs(operator: Operator, device: str) -> Trials:
    """Does an argument that is written keep its shape and its memory?"""
    if not operator.written():
        raise NotApplicable("writes none of its inputs")
    inputs = operator.fresh(device)
    for place in operator.written():
        for group, pairs in groups_of(operator, inputs).items():
            if any(place[0] == i for i, _ in pairs):
                size = size_of(operator, inputs, group)[0]
                for other in (0, max(size - 1, 0), size, size + 1):
                    yield trial(metadata_stays, group=group, size=other, place=place)


def _undeclared_aliases(function, args, kwargs, returned) -> list[str]:
    """Memory that a result of a call shares although the schema calls the result new."""
    problems: list[str] = []
    results = returned if isinstance(returned, (tuple, list)) else [returned]
    declared = function._schema.returns
    seen: list[tuple[int, int]] = []
    for k, value in enumerate(results):
        alias = declared[k].alias_info if k < len(declared) else None
        for x in tree_leaves(value):
            if isinstance(x, torch.Tensor) and x.numel() and alias is None:
                address = x.untyped_storage().data_ptr()
                for argument, given in bound_arguments(function, args, kwargs):
                    for y in tree_leaves(given):
                        if isinstance(y, torch.Tensor) and y.untyped_storage().data_ptr() == address:
                            problems.append(f"result {k} lies in the memory of argument {argument.name}")
                problems += [f"result {k} lies in the memory of result {j}" for j, other in seen if other == address]
                seen.append((k, address))
    return problems


def _missing_aliases(function, args, kwargs, returned) -> list[str]:
    """Results that are new although the schema names them as an argument that is written."""
    problems: list[str] = []
    results = returned if isinstance(returned, (tuple, list)) else [returned]
    for k, (value, declared) in enumerate(zip(results, function._schema.returns, strict=False)):
        alias = declared.alias_info
        if isinstance(value, torch.Tensor) and alias is not None and alias.is_write:
            for argument, given in bound_arguments(function, args, kwargs):
                is_named = argument.alias_info is not None and argument.alias_info.before_set == alias.before_set
                if is_named and isinstance(given, torch.Tensor) and not given.is_set_to(value):
                    problems.append(f"result {k} is not argument {argument.name}, as the schema says")
    return problems


def results_are_new(operator: Operator, device: str, group: str | None, size: int, dtype: torch.dtype | None) -> None:
    """But where the schema names the result as one of the arguments."""
    inputs = resized_or_not(operator, device, group, size)
    inputs = inputs if dtype is None else cast(inputs, dtype)

    def watch(function, args, kwargs):
        returned = function(*args, **kwargs)
        problems = _undeclared_aliases(function, args, kwargs, returned)
        require(not problems, f"{'; '.join(problems)}; the schema says that it is new")
        return returned

    with Spy(operator.packet, watch):
        operator.call(*inputs)


@check("return a clone(), or decide in Python whether to call", "6_kinds", opcheck=("test_schema",))
def aliases(operator: Operator, device: str) -> Trials:
    """Is the memory of each result new, unless the schema says otherwise?"""
    yield trial(results_are_new, group=None, size=0, dtype=None)
    for dtype in (torch.float64, torch.float16):
        yield trial(results_are_new, group=None, size=0, dtype=dtype)
    for group, size in small_sizes(operator, device):
        yield trial(results_are_new, group=group, size=size, dtype=None)


def only_declared_is_written(operator: Operator, device: str, group: str | None, size: int, needs_grad: bool) -> None:
    inputs = resized_or_not(operator, device, group, size)
    for place in places_with_gradient(operator, inputs) if needs_grad else ():
        get(inputs, place).requires_grad_()

    def watch(function, args, kwargs):
        pairs = [
            (argument, x)
            for argument, value in bound_arguments(function, args, kwargs)
            for x in tree_leaves(value)
            if isinstance(x, torch.Tensor)
        ]
        before = [(x.shape, x.stride(), x.detach().clone()) for _, x in pairs]
        returned = function(*args, **kwargs)
        for (argument, x), (shape, old_strides, values) in zip(pairs, before, strict=True):
            is_kept = (x.shape, x.stride()) == (shape, old_strides)
            require(is_kept, f"argument {argument.name} had shape {[*shape]} and has {[*x.shape]} after the call")
            is_declared = argument.alias_info is not None and argument.alias_info.is_write
            message = f"argument {argument.name} is written; the schema does not say so with (a!)"
            require(is_declared or same_bits([x.detach()], [values]), message)
        problems = _missing_aliases(function, args, kwargs, returned)
        require(not problems, "; ".join(problems))
        return returned

    places = places_of_tensors(inputs)
    lists = [list(x) if isinstance(x, list) else x for x in inputs]
    before = [(get(inputs, place).detach().clone(), get(inputs, place).requires_grad) for place in places]
    with Spy(operator.packet, watch):
        operator.call(*inputs)
    for i, (x, old) in enumerate(zip(inputs, lists, strict=True)):
        if isinstance(x, list):
            is_kept = len(x) == len(old) and all(a is b for a, b in zip(x, old, strict=True))
            require(is_kept, f"input {i} is a list, and the call changes what is in it")
    for place, (values, requires_grad) in zip(places, before, strict=True):
        if place not in operator.written():
            x = get(inputs, place)
            require(same_bits([x.detach()], [values]), f"input {place[0]} is changed by the call")
            require(x.requires_grad == requires_grad, f"the call sets requires_grad of input {place[0]}")


@check("declare what is written, as Tensor(a!)", "6_kinds", opcheck=("test_schema",))
def writes(operator: Operator, device: str) -> Trials:
    """Is only that written which the schema says, and does nothing change its shape?"""
    for needs_grad in (False, True):
        yield trial(only_declared_is_written, group=None, size=0, needs_grad=needs_grad)
    for group, size in small_sizes(operator, device, largest=3):
        yield trial(only_declared_is_written, group=group, size=size, needs_grad=False)


def version_is_raised(operator: Operator, device: str, place: tuple) -> None:
    """autograd has saved the tensor that is then written."""
    inputs = operator.fresh(device)
    saved = get(inputs, place)
    factor = torch.ones_like(saved, requires_grad=True)
    product = factor * saved  # saves it for the backward pass
    before = saved.clone()
    with torch.no_grad():
        operator.call(*inputs)
    if same_bits([saved], [before]):
        raise NotApplicable("the call leaves the values as they are")
    try:
        gradient = torch.autograd.grad(product.sum(), factor)[0]
    except RuntimeError:
        return
    message = f"input {place[0]} was written, its version counter stayed: autograd takes a wrong gradient"
    require(same_bits([gradient], [before]), message)


@check("call torch.autograd.graph.increment_version(x) after the kernel; custom_op does so for mutates_args", "6_kinds")
def version(operator: Operator, device: str) -> Trials:
    """Does autograd notice what is written?"""
    inputs = operator.fresh(device)
    places = [place for place in operator.written() if get(inputs, place).is_floating_point()]
    if not places:
        raise NotApplicable("writes none of its floating-point inputs")
    for place in places:
        yield trial(version_is_raised, place=place)


def shared_memory_is_right(operator: Operator, device: str, place: tuple, other: tuple, shift: int) -> None:
    """As if the input had been copied before the call."""
    inputs = operator.fresh(device)
    n = get(inputs, other).numel()
    memory = torch.cat([get(inputs, other).flatten(), get(inputs, other).flatten()])
    put(inputs, other, memory[:n].view(get(inputs, other).shape))
    plain = copies(inputs)
    target = memory[shift : shift + n].view(get(inputs, other).shape)
    put(plain, place, target.clone())
    put(inputs, place, target)
    right = [x.clone() for x in operator.run(plain)]
    found = operator.run(inputs)
    if shift:  # what was read is overwritten: only what was written counts
        found, right = [get(inputs, place)], [get(plain, place)]
    compare(operator, found, right, what=f"input {place[0]}, which is written, shares memory with {other[0]}; result")


@check(
    "refuse arguments that share memory, or read each element before it is written", "6_kinds", because_of=("values",)
)
def overlaps(operator: Operator, device: str) -> Trials:
    """Is it right, or refused, if the argument that is written shares memory with one that is read?"""
    inputs = operator.fresh(device)
    written = operator.written()
    if not written:
        raise NotApplicable("writes none of its inputs")
    for place in written:
        for other in places_of_tensors(inputs):
            x, y = get(inputs, place), get(inputs, other)
            if other not in written and (x.shape, x.dtype) == (y.shape, y.dtype) and x.numel() > 2:
                for shift in (0, 1, 2):
                    yield trial(shared_memory_is_right, place=place, other=other, shift=shift)


def same_tensor_twice(operator: Operator, device: str, place: tuple, other: tuple) -> None:
    inputs = operator.fresh(device)
    put(inputs, other, get(inputs, place))
    plain = copies(inputs)
    compare(
        operator, operator.run(inputs), operator.run(plain), what=f"inputs {place[0]} and {other[0]} are one; result"
    )


def gradient_of_same_tensor(operator: Operator, device: str, place: tuple, other: tuple) -> None:
    """The sum of both inputs' gradients."""
    inputs = operator.fresh(device)
    put(inputs, other, get(inputs, place).clone())
    function, leaves = function_of(operator, inputs, [place, other]), leaves_of(inputs, [place, other])
    right = torch.stack(gradients_of(function, leaves)).sum(0)
    found = gradients_of(lambda x: function(x, x), leaves[:1])
    compare(operator, found, [right], factor=20, what=f"inputs {place[0]} and {other[0]} are one; gradient")


@check("read inputs only", "6_kinds", because_of=("writes", "values", "gradients"))
def same_input(operator: Operator, device: str) -> Trials:
    """May two inputs be the same tensor, and is its gradient that of both?"""
    inputs = operator.fresh(device)
    places = [place for place in places_of_tensors(inputs) if place not in operator.written()]
    for i, place in enumerate(places):
        for other in places[i + 1 :]:
            x, y = get(inputs, place), get(inputs, other)
            if (x.shape, x.dtype) == (y.shape, y.dtype):
                yield trial(same_tensor_twice, place=place, other=other)
                if {place, other} <= set(places_with_gradient(operator, inputs)):
                    yield trial(gradient_of_same_tensor, place=place, other=other)
