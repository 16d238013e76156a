"""Autocast, modes and subclasses."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .gradients import function_of, gradients_of, leaves_of
from .operator import Operator, Spy, copies, get, has_numbers, places_of_tensors, put
from .registry import Trials, check, trial
from .tracing import compare_with_fake
from .trial import (
    NotApplicable,
    Wrong,
    cast,
    compare,
    compare_values,
    expected_or_none,
    filled,
    floating,
    places_with_gradient,
    require,
)


def autocast_is_right(operator: Operator, device: str, dtypes: list) -> None:
    """Values as the reference's under autocast (or as without it); gradients of the dtypes of the inputs; and a fake
    kernel that knows the dtype."""
    inputs = operator.fresh(device)
    places = floating(inputs)
    for place, dtype in zip(places, dtypes, strict=True):
        put(inputs, place, get(inputs, place).to(dtype))
    with torch.autocast(device.split(":")[0], torch.bfloat16):
        found = operator.run(copies(inputs))
        right = expected_or_none(operator, inputs)
    plain = expected_or_none(operator, cast(inputs, torch.float32))
    if right is None and plain is None:
        if operator.reference is not None:
            raise NotApplicable("the reference refuses")
        plain = [x.float() for x in operator.run(cast(inputs, torch.float32))]
    for k, x in enumerate(found):
        candidates = [each[k] for each in (right, plain) if each is not None]
        _compare_with_any(f"under autocast, inputs {dtypes}; result {k}", x, candidates)
    with_gradient = [place for place in places_with_gradient(operator, inputs) if place not in operator.written()]
    if with_gradient:
        with torch.autocast(device.split(":")[0], torch.bfloat16):
            gradients = gradients_of(function_of(operator, inputs, with_gradient), leaves_of(inputs, with_gradient))
        for place, x in zip(with_gradient, gradients, strict=True):
            y = get(inputs, place)
            require(
                x.dtype == y.dtype, f"under autocast the gradient of input {place[0]} is {x.dtype}, expected {y.dtype}"
            )


def _compare_with_any(name: str, found: Tensor, candidates: Sequence[Tensor]) -> None:
    for k, right in enumerate(candidates):
        try:
            require(found.shape == right.shape, f"{name} has shape {[*found.shape]}, expected {[*right.shape]}")
            return compare_values(name, found, right, 0.06)
        except Wrong:
            if k == len(candidates) - 1:
                raise


def fake_knows_autocast(operator: Operator, device: str) -> None:
    """The dtype of the result under autocast, by the fake and by the real kernel."""
    inputs = operator.fresh(device)
    with torch.autocast(device.split(":")[0], torch.bfloat16):
        real = operator.run(copies(inputs))
        with FakeTensorMode() as mode:
            fake_inputs = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x, inputs)
            compare_with_fake(operator.run(fake_inputs), real)


@check(
    "register a function at the keys AutocastCPU and AutocastCUDA that casts first, or refuse mixed dtypes",
    "5_your_own",
    because_of=("values", "mixed_dtypes", "fake", "gradients", "gradient_dtypes", "dtypes"),
)
def autocast(operator: Operator, device: str) -> Trials:
    """Is it right, or refused, under torch.autocast, with inputs of one dtype and of two?"""
    inputs = operator.fresh(device)
    places = floating(inputs)
    if not places:
        raise NotApplicable("no input is floating-point")
    wide, half = torch.float32, torch.bfloat16
    for k in range(-1, len(places)):
        yield trial(autocast_is_right, dtypes=[half if j == k else wide for j in range(len(places))])
    yield trial(autocast_is_right, dtypes=[half] * len(places))
    yield trial(fake_knows_autocast)


class Wrapper(torch.Tensor):
    """A subclass without values of its own: it holds a tensor, and passes each operator on."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
            strides=inner.stride(),
        )
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[override]
        unwrapped = tree_map(lambda x: x.held if isinstance(x, cls) else x, (args, kwargs or {}))
        results = function(*unwrapped[0], **unwrapped[1])
        return tree_map(lambda x: cls(x) if isinstance(x, Tensor) else x, results)


class Named(torch.Tensor):
    """A subclass with nothing but a name."""


def kinds_of(operator: Operator, inputs: Sequence, found: Sequence[Tensor]) -> set[str]:
    """The classes of results. Of numbers run() makes plain tensors, which do not count."""
    plain = {"Tensor"} if has_numbers(operator.call(*copies(inputs))) else set()
    return {type(x).__name__ for x in found} - plain


def wrapped_is_right(operator: Operator, device: str) -> None:
    """Tensors of a subclass with __torch_dispatch__, as DTensor and quantized tensors are."""
    inputs = operator.fresh(device)
    right = [x.clone() for x in operator.run(copies(inputs))]
    wrapped = [tree_map(lambda x: Wrapper(x) if isinstance(x, Tensor) else x, x) for x in inputs]
    found = operator.run(wrapped)
    kinds = kinds_of(operator, inputs, found)
    require(kinds <= {"Wrapper"}, f"inputs of a subclass with __torch_dispatch__ give a result of type {kinds}")
    compare(
        operator,
        [x.held if isinstance(x, Wrapper) else x for x in found],
        right,
        what="of a subclass with __torch_dispatch__; result",
    )


def named_is_kept(operator: Operator, device: str) -> None:
    """A result of torch's own functions has the subclass of the inputs. A Parameter gives a tensor."""
    inputs = operator.fresh(device)
    right = [x.clone() for x in operator.run(copies(inputs))]
    named = [tree_map(lambda x: x.as_subclass(Named) if isinstance(x, Tensor) else x, x) for x in copies(inputs)]
    found = operator.run(named)
    kinds = kinds_of(operator, inputs, found)
    require(kinds <= {"Named"}, f"inputs of a subclass give {', '.join(kinds)}, not the subclass")
    compare(operator, [x.as_subclass(Tensor) for x in found], right, what="of a subclass; result")
    parameters = copies(inputs)
    for place in floating(parameters):
        if place not in operator.written():
            put(parameters, place, torch.nn.Parameter(get(parameters, place), requires_grad=False))
    found = [x for x in operator.run(parameters) if not any(x is get(parameters, p) for p in operator.written())]
    require(all(type(x) is Tensor for x in found), "a Parameter gives a result that is no plain tensor")


def called_by(operator: Operator, inputs: Sequence) -> set[str]:
    """The names of all that the dispatcher is asked for, by its own record. A kernel at an Autograd key may call other
    operators, and a dispatch mode then sees these."""
    with torch.autograd.profiler.profile() as profile:
        operator.run(inputs)
    return {event.name for event in profile.function_events}


def modes_see_it(operator: Operator, device: str) -> None:
    """A dispatch mode and a function mode see a call of the operator, and leave the result as it is."""
    inputs = operator.fresh(device)
    right = [x.clone() for x in operator.run(copies(inputs))]
    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Spy(operator.packet) as spy:
        found = operator.run(copies(inputs))
    compare(operator, found, right, what="under a dispatch mode; result")
    is_made_of_others = spy.others and operator.name.split(".")[0] in called_by(operator, operator.fresh(device))
    is_seen = bool(spy.calls or is_made_of_others)
    require(is_seen, f"a dispatch mode sees no call of {operator.name}; does `call` call it?")
    with Functions():
        found = operator.run(copies(inputs))
    compare(operator, found, right, what="under a function mode; result")


def functionalized_is_right(operator: Operator, device: str) -> None:
    """torch.func.functionalize replaces writes by new values."""
    inputs = operator.fresh(device)
    places = places_of_tensors(inputs)
    right = [x.clone() for x in operator.run(copies(inputs))]
    function = torch.func.functionalize(lambda *xs: operator.run(filled(operator, inputs, places, xs)))
    found = function(*(get(inputs, place) for place in places))
    compare(operator, list(found), right, what="functionalized; result")


@check(
    "send a call with subclasses or modes through the dispatcher",
    "3_operator",
    because_of=("values", "fake", "aliases", "writes", "repeated"),
)
def modes_and_subclasses(operator: Operator, device: str) -> Trials:
    """Is it right with tensor subclasses, under modes, and functionalized?"""
    if operator.packet is None:
        raise NotApplicable("not an operator of the dispatcher")
    if not operator.calls(operator.fresh(device)):
        for overload in operator.packet.overloads():
            if torch._C._dispatch_has_kernel_for_dispatch_key(
                getattr(operator.packet, overload).name(), "CompositeImplicitAutograd"
            ):
                raise NotApplicable("made of other operators, which modes see instead")
    for function in (wrapped_is_right, named_is_kept, modes_see_it, functionalized_is_right):
        yield trial(function)
