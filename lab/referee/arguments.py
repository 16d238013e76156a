"""Arguments: are those that do not belong together refused, in every way of calling?"""

import math
import re
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .gradients import function_of, leaves_of, loss
from .operator import Operator, copies, first_line, get, places_of_tensors, put
from .registry import Trials, check, trial
from .trial import (
    NotApplicable,
    Refused,
    Unclear,
    Wrong,
    accepts,
    compare,
    expected,
    expected_or_none,
    filled,
    floating,
    is_integer,
    require,
    same_bits,
)

OTHER_NUMBERS = {int: (0, 1, -1, 2, -2, 3), float: (0.0, 1.0, -1.5, math.inf, math.nan), bool: (False, True)}


CHANGES = {  # of a tensor's shape
    "the last row less": lambda x: x.narrow(0, 0, x.shape[0] - 1) if x.dim() and x.shape[0] > 1 else None,
    "the last column less": lambda x: x[..., :-1] if x.dim() > 1 and x.shape[-1] > 1 else None,
    "the first row only": lambda x: x[:1] if x.dim() and x.shape[0] > 1 else None,
    "the first column only": lambda x: x[..., :1] if x.dim() > 1 and x.shape[-1] > 1 else None,
    "the first row, without the dimension": lambda x: x[0] if x.dim() and x.shape[0] > 1 else None,
    "the first element": lambda x: x.flatten()[0] if x.dim() and x.numel() > 1 else None,
    "twice as many rows": lambda x: torch.cat([x, x]) if x.dim() else None,
    "one more dimension": lambda x: x[None],
    "flat": lambda x: x.flatten() if x.dim() > 1 else None,
    "transposed": lambda x: x.mT.contiguous() if x.dim() > 1 and x.shape[-1] != x.shape[-2] else None,
}


def is_without_ones(x: Tensor, y: Tensor) -> bool:
    return x.dim() < y.dim() and [*x.shape] == [n for n in y.shape if n != 1]


def changed_shape_is_right(operator: Operator, device: str, place: tuple, change: str) -> None:
    """Right are: the reference's result; an error; or that of the original shape, if no element was added or lost."""
    original = operator.fresh(device)
    inputs = copies(original)
    put(inputs, place, CHANGES[change](get(inputs, place)).clone())
    found = operator.run(copies(inputs))
    shape = [*get(inputs, place).shape]
    right = expected_or_none(operator, inputs)
    if right is not None:
        if len(found) == len(right):  # a result without the dimension of size 1 is fair
            found = [x.view(y.shape) if is_without_ones(x, y) else x for x, y in zip(found, right, strict=True)]
        return compare(operator, found, right, what=f"input {place[0]} has shape {shape} ({change}); result")
    same = expected(operator, original)
    is_same = [x.numel() == y.numel() and x.dtype == y.dtype for x, y in zip(found, same, strict=True)]
    message = f"input {place[0]} of shape {shape} ({change}) is accepted; the reference refuses it"
    require(get(inputs, place).numel() >= get(original, place).numel() and all(is_same), message)
    require(same_bits([x.flatten() for x in found], [x.flatten() for x in operator.run(original)]), message)


@check(
    "check every size that the kernel uses",
    "2_mistakes",
    because_of=("values", "odd_sizes", "bounds", "garbage_values", "resized_outputs"),
)
def shapes(operator: Operator, device: str) -> Trials:
    """Is an input whose shape does not fit broadcast as the reference does it, or refused?"""
    if operator.reference is None:
        raise NotApplicable("no reference")
    inputs = operator.fresh(device)
    for place in places_of_tensors(inputs):
        for change, function in CHANGES.items():
            if function(get(inputs, place)) is not None:
                yield trial(changed_shape_is_right, place=place, change=change)


def other_device_is_refused(operator: Operator, device: str, place: tuple, other: str) -> None:
    inputs = operator.fresh(device)
    put(inputs, place, get(inputs, place).to(other))
    found = [x for x in operator.run(inputs) if not any(x is y for y in inputs)]
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    places = {str(x.device) for x in found}
    message = f"input {place[0]} is on {other}, and the call returns a result on {', '.join(places)}"
    if other == "meta":
        message += " (torch's default: with a tensor on meta a call goes to the fake kernel)"
    require(places <= {"meta"}, message, is_torchs_default=other == "meta")


@check("compare the devices of all tensors, in the fake kernel, too", "5_your_own")
def devices(operator: Operator, device: str) -> Trials:
    """Is one tensor on another device than the rest refused?"""
    inputs = operator.fresh(device)
    places = [place for place in places_of_tensors(inputs) if get(inputs, place).dim()]
    if len(places) < 2:
        raise NotApplicable("needs two tensors with dimensions")
    for place in places:
        for other in ["meta"] + ["cpu"] * device.startswith("cuda"):
            yield trial(other_device_is_refused, place=place, other=other)


LENGTHS: dict[str, Callable[[list], list]] = {  # of a list of tensors
    "without its last tensor": lambda xs: xs[:-1],
    "with all its tensors twice": lambda xs: xs + xs,
    "with its first tensor once more": lambda xs: xs + xs[:1],
    "empty": lambda xs: [],
}


def list_is_refused_or_right(operator: Operator, device: str, position: int, length: str) -> None:
    inputs = operator.fresh(device)
    inputs[position] = LENGTHS[length](inputs[position])
    try:
        found = operator.run(copies(inputs))
    except IndexError as error:  # of Python: an empty list has no first tensor
        raise Refused(first_line(error)) from None
    right = expected_or_none(operator, inputs)
    message = f"input {position} is a list of {len(inputs[position])} tensors ({length})"
    require(right is not None, f"{message}, which is accepted; the reference refuses it")
    compare(operator, found, right or [], what=f"{message}; result")


def argument_is_refused_or_right(operator: Operator, device: str, position: int, value: object) -> None:
    inputs = operator.fresh(device)
    inputs[position] = value
    found = operator.run(copies(inputs))
    right = expected_or_none(operator, inputs)
    message = f"input {position} is {value!r}, which is accepted; the reference refuses it"
    require(right is not None or operator.reference is None, message)
    if right is not None:
        compare(operator, found, right, what=f"input {position} is {value!r}; result")


@check("check arguments before you use them", "3_operator", because_of=("values",))
def arguments(operator: Operator, device: str) -> Trials:
    """Are None, other numbers, strings and lengths of lists refused, or computed as the reference does it?"""
    if operator.reference is None:
        raise NotApplicable("no reference")
    for i, x in enumerate(operator.fresh(device)):
        others: tuple = OTHER_NUMBERS.get(type(x), ())
        if isinstance(x, (torch.Tensor, list)):
            others = (None,)
        elif isinstance(x, str):
            others = ("no such value", "")
        for value in others:
            if value != x:
                yield trial(argument_is_refused_or_right, position=i, value=value)
        if isinstance(x, list) and x and all(isinstance(each, Tensor) for each in x):
            for length in LENGTHS:
                yield trial(list_is_refused_or_right, position=i, length=length)


def _with_value(operator: Operator, device: str, position: int, value: float) -> list:
    """Inputs of which one is this value: a number, or the last element of a tensor."""
    inputs = operator.fresh(device)
    for place in places_of_tensors(inputs):
        if place[0] == position:
            x = get(inputs, place).contiguous()
            x.view(-1)[-1:] = value
            put(inputs, place, x)
    if not isinstance(inputs[position], (torch.Tensor, list)):
        inputs[position] = value
    return inputs


def value_is_refused(operator: Operator, device: str, position: int, value: float) -> None:
    """One element of the input lies outside the bounds."""
    inputs = _with_value(operator, device, position, value)
    operator.run(inputs)
    if device.startswith("cuda"):
        torch.cuda.synchronize()  # an assert in a kernel shows now
    raise Wrong(f"input {position} holds {value}, outside of its bounds {operator.bounds[position]}, and is accepted")


def value_is_right(operator: Operator, device: str, position: int, value: float) -> None:
    """One element of the input is the least or the largest value. The call leaves it as it is: -1 stays -1."""
    inputs = _with_value(operator, device, position, value)
    before = copies(inputs)
    found = operator.run(inputs)
    for place in places_of_tensors(inputs):
        is_kept = place in operator.written() or same_bits([get(inputs, place)], [get(before, place)])
        require(
            is_kept, f"input {position} holds {value}, which is allowed, and input {place[0]} is changed by the call"
        )
    compare(
        operator, found, expected(operator, before), what=f"input {position} holds {value}, which is allowed; result"
    )


@check(
    "check the values that become addresses, or clamp them and say so", "3_operator", because_of=("values", "writes")
)
def bounds(operator: Operator, device: str) -> Trials:
    """Are values outside their bounds refused, and those at the bounds right?"""
    inputs = operator.fresh(device)
    for i, (low, high) in operator.bounds.items():
        for value in (low, high):
            yield trial(value_is_right, position=i, value=value)
        places = [place for place in places_of_tensors(inputs) if place[0] == i]
        is_float = any(get(inputs, place).is_floating_point() for place in places) or isinstance(inputs[i], float)
        for value in (low - 1, high + 1, -(10**6), 10**6, *([math.nan] if is_float else [])):
            if not low <= value <= high:
                yield trial(value_is_refused, position=i, value=value)


def large_integers_are_right(operator: Operator, device: str, place: tuple, value: int) -> None:
    """They may be places in another tensor. A crash is the finding; or a result where the reference refuses."""
    inputs = operator.fresh(device)
    get(inputs, place).view(-1)[-1:] = value
    right = expected_or_none(operator, inputs)
    found = operator.run(copies(inputs))
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    message = f"input {place[0]} holds {value}, which is accepted; the reference refuses it"
    require(right is not None or operator.reference is None, message)
    if right is not None:
        compare(operator, found, right, what=f"input {place[0]} holds {value}; result")


@check("check the values that become addresses, or state their bounds", "3_operator", because_of=("values", "bounds"))
def garbage_values(operator: Operator, device: str) -> Trials:
    """Does an integer input survive numbers that are far too large or negative?"""
    inputs = operator.fresh(device)
    for place in places_of_tensors(inputs):
        x = get(inputs, place)
        if is_integer(x) and x.numel() and x.is_contiguous() and place[0] not in operator.bounds:
            for value in (torch.iinfo(x.dtype).max, torch.iinfo(x.dtype).min, -1):
                yield trial(large_integers_are_right, place=place, value=value)


WAYS = (
    "a plain call",
    "no_grad",
    "inference_mode",
    "with gradients",
    "jvp",
    "grad",
    "vmap",
    "compiled",
    "a dispatch mode",
)


def wrong_arguments_are_refused(operator: Operator, device: str, words: str, way: str) -> None:
    """In the same words in every way, before anything is written."""
    inputs = operator.fresh(device)
    for i, change in operator.wrong[words].items():
        inputs[i] = change(inputs[i]) if callable(change) else change
    before = copies(inputs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _call_by(operator, inputs, way)
    except NotApplicable:
        raise
    except Exception as error:
        is_said = way in ("compiled", "vmap", "jvp", "grad") or re.search(words, str(error))
        if not is_said:
            raise Unclear(f"wrong[{words!r}] is refused by {way} with other words: {first_line(error)}") from None
    else:
        raise Wrong(f"wrong[{words!r}] is accepted by {way}")
    for x, y in zip(inputs, before, strict=True):
        is_kept = not isinstance(x, Tensor) or same_bits([x], [y])
        require(is_kept, f"wrong[{words!r}] is refused after something was written")


def _call_by(operator: Operator, inputs: list, way: str) -> None:
    places = [p for p in floating(inputs) if p not in operator.written()]
    xs = [get(inputs, place) for place in places]
    needed = [p for p in places if p[0] in operator.gradients]
    if way in ("jvp", "grad", "with gradients") and (not needed or operator.written()):
        raise NotApplicable("no gradient")
    if way == "a plain call":
        operator.call(*inputs)
    elif way in ("no_grad", "inference_mode"):
        with getattr(torch, way)():
            operator.call(*inputs)
    elif way == "with gradients":
        function_of(operator, inputs, needed)(*leaves_of(inputs, needed))
    elif way == "a dispatch mode":
        operator.calls(inputs)
    elif way == "jvp":
        with forward_ad.dual_level():
            function_of(operator, inputs, needed)(
                *(forward_ad.make_dual(get(inputs, p), get(inputs, p)) for p in needed)
            )
    elif way == "grad":
        torch.func.grad(loss(function_of(operator, inputs, needed)))(*(get(inputs, p) for p in needed))
    elif way == "vmap":
        if not xs or operator.written():
            raise NotApplicable("nothing to batch")
        many = tuple(torch.stack([x, x]) for x in xs)
        if accepts(operator, filled(operator, inputs, places, [x[0] for x in many])):
            raise NotApplicable("a batch of it is not wrong: its members are contiguous, for example")
        torch.vmap(lambda *ys: operator.run(filled(operator, inputs, places, ys)))(*many)
    elif way == "compiled":
        torch.compile(lambda *ys: operator.call(*filled(operator, inputs, places, ys)), backend="eager")(*xs)


@check("check once, in C++ or before each branch, so that every way to the operator passes the checks", "3_operator")
def refusals(operator: Operator, device: str) -> Trials:
    """Are the arguments of `wrong` refused in every way of calling, before anything is written?"""
    if not operator.wrong:
        raise NotApplicable("the description has no `wrong`")
    for words in operator.wrong:
        for way in WAYS:
            yield trial(wrong_arguments_are_refused, words=words, way=way)
