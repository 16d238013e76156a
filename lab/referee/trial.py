"""Helpers of the trials: compare, change a size or a dtype, tell a refusal from an unclear error."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .operator import Operator, Place, copies, first_line, get, places_of_tensors, put

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Wrong(AssertionError):
    """The operator is wrong, and raised no error. is_torchs_default: as torch does if the author does nothing."""

    def __init__(self, message: str, is_torchs_default: bool = False):
        super().__init__(message)
        self.is_torchs_default = is_torchs_default


class NotApplicable(Exception):
    """The question makes no sense for this operator, or cannot be asked here."""


class Refused(Exception):
    """The operator cannot be used in this way, and says so."""


class Unclear(Exception):
    """The operator refuses, but does not say what is wrong."""


def require(condition: bool, message: str, is_torchs_default: bool = False) -> None:
    if not condition:
        raise Wrong(message, is_torchs_default)


# --- comparing -------------------------------------------------------------------------------------------------------


def compare(
    operator: Operator,
    found: Sequence[Tensor],
    right: Sequence[Tensor],
    factor: float = 1.0,
    what: str = "result",
    has_ties: bool = False,
) -> None:
    """Wrong unless number, shapes, dtypes, devices and values agree. factor multiplies the operator's tolerance.
    has_ties: inputs may have equal values, so integers next to floating-point results, as of topk, may differ."""
    require(len(found) == len(right), f"{len(found)} {what}s, expected {len(right)}")
    has_floats = any(y.is_floating_point() for y in right)
    for k, (x, y) in enumerate(zip(found, right, strict=True)):
        name = f"{what} {k}"
        require(x.shape == y.shape, f"{name} has shape {[*x.shape]}, expected {[*y.shape]}")
        require(x.dtype == y.dtype, f"{name} is {x.dtype}, expected {y.dtype}")
        require(x.device == y.device, f"{name} is on {x.device}, expected {y.device}")
        if not (has_ties and has_floats and not y.is_floating_point()):
            compare_values(name, x, y, factor * operator.tolerance_of(y.dtype))


def compare_values(name: str, found: Tensor, right: Tensor, tolerance: float) -> None:
    """An element may differ by tolerance times the larger of its value and the root mean square of all values."""
    found, right = found.detach(), right.detach()
    if right.is_complex():
        found, right = torch.view_as_real(found.resolve_conj()), torch.view_as_real(right.resolve_conj())
    if right.is_floating_point():
        x, y = found.double(), right.double()
        finite = y[y.isfinite()]
        scale = finite.square().mean().sqrt() if finite.numel() else y.new_zeros(())
        is_same = (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= tolerance * torch.maximum(y.abs(), scale))
    else:
        is_same = found == right
    if not is_same.all():
        count, where = int((~is_same).sum()), (~is_same).nonzero()[0].tolist()
        ours, theirs = found[tuple(where)].item(), right[tuple(where)].item()
        digits = next((n for n in (6, 9) if f"{ours:.{n}g}" != f"{theirs:.{n}g}"), 17)
        pair = f"{ours:.{digits}g}, expected {theirs:.{digits}g}"
        message = f"{count} of {is_same.numel()} elements are wrong; at {where} {pair}"
        raise Wrong(f"{name}: {message}")


def same_bits(found: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """NaNs count as equal."""
    pairs = zip(found, right, strict=True)
    return all(x.dtype == y.dtype and torch.equal(x.nan_to_num(9.5), y.nan_to_num(9.5)) for x, y in pairs)


def compare_with_reference(
    operator: Operator, found: Sequence[Tensor], inputs: Sequence, has_ties: bool = False, factor: float = 1.0
) -> None:
    """By the reference in the dtype of the inputs, or in float64: it may lose more digits than the operator does."""
    right = expected(operator, inputs)
    try:
        compare(operator, found, right, factor, has_ties=has_ties)
    except Wrong:
        if not any(x.dtype in (torch.float32, torch.float16, torch.bfloat16) for x in right):
            raise
        try:
            precise = operator.expected(cast(inputs, torch.float64))
            precise = [x.to(y.dtype) for x, y in zip(precise, right, strict=True)]
        except Exception:
            precise = right
        compare(operator, found, precise, factor, has_ties=has_ties)


def expected(operator: Operator, inputs: Sequence) -> list[Tensor]:
    """The reference's results. NotApplicable if there is no reference, or if it refuses."""
    if operator.reference is None:
        raise NotApplicable("no reference")
    try:
        return operator.expected(copies(inputs))
    except Exception as error:
        raise NotApplicable(f"the reference refuses: {first_line(error)}") from None


def expected_or_none(operator: Operator, inputs: Sequence) -> list[Tensor] | None:
    try:
        return expected(operator, inputs)
    except NotApplicable:
        return None


# --- other inputs ----------------------------------------------------------------------------------------------------


def floating(inputs: Sequence) -> list[Place]:
    return [place for place in places_of_tensors(inputs) if get(inputs, place).is_floating_point()]


def is_integer(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool


def filled(operator: Operator, inputs: Sequence, places: Sequence[Place], xs: Sequence[Tensor]) -> list:
    """The inputs with these tensors in these places. Those that the operator writes are clones."""
    found = [list(x) if isinstance(x, list) else x for x in inputs]
    for place, x in zip(places, xs, strict=True):
        put(found, place, x)
    for place in operator.written():
        put(found, place, get(found, place).clone())
    return found


def places_with_gradient(operator: Operator, inputs: Sequence) -> list[Place]:
    return [place for place in floating(inputs) if place[0] in operator.gradients]


def cast(inputs: Sequence, dtype: torch.dtype, only: Place | None = None) -> list:
    """Copies; all floating-point tensors, or only one, in another dtype."""
    found = copies(inputs)
    for place in [only] if only else floating(inputs):
        put(found, place, get(found, place).to(dtype))
    return found


def other_values(operator: Operator, place: Place, x: Tensor, n: int) -> Tensor:
    """Other numbers, for n > 0. Integers may be offsets that must ascend: only those with bounds are permuted."""
    if x.is_floating_point():
        return x * (n + 1)
    return x.flatten().roll(n).view(x.shape) if place[0] in operator.bounds else x.clone()


def accepts(operator: Operator, inputs: Sequence) -> bool:
    try:
        operator.run(copies(inputs))
    except Exception:
        return False
    return True


def resize(operator: Operator, inputs: Sequence, group: str, size: int) -> list:
    """Copies, in which the sizes of a group have become `size`: shortened, or repeated from the start."""
    found = copies(inputs)
    for i, dim in groups_of(operator, inputs)[group]:
        for place in places_of_tensors(found):
            if place[0] == i:
                x = get(found, place)
                times = [1] * x.dim()
                times[dim] = math.ceil(size / max(x.shape[dim], 1))
                longer = x.repeat(times).narrow(dim, 0, size) if times[dim] > 1 else x.narrow(dim, 0, size)
                put(found, place, longer if longer.numel() > 2**28 else longer.clone())
    return found


def resize_without_ties(operator: Operator, inputs: Sequence, group: str, size: int) -> list:
    """As resize(), but floating-point numbers grow, so that none repeats, and the last ones are the largest."""
    found = resize(operator, inputs, group, size)
    for i, dim in groups_of(operator, inputs)[group] if size else ():
        for place in floating(found):
            if place[0] == i:
                x = get(found, place).movedim(dim, -1)
                x *= torch.linspace(1, 2, size, dtype=x.dtype, device=x.device)
                x[..., -1] *= 2
    return found


def groups_of(operator: Operator, inputs: Sequence) -> dict[str, list[tuple[int, int]]]:
    """The sizes that may change. Without operator.sizes: dimensions of equal size, if floating-point tensors are all
    that is there (numbers of an integer tensor may be places in another one) and twice the size is accepted."""
    if operator.sizes is not None:
        return {name: list(pairs) for name, pairs in operator.sizes.items()}
    if operator.groups is None:
        operator.groups = {}
        places = places_of_tensors(inputs)
        if all(get(inputs, place).is_floating_point() for place in places):
            sizes = sorted({size for place in places for size in get(inputs, place).shape if size > 1})
            candidates = {
                f"all of size {size}": sorted(
                    {(p[0], dim) for p in places for dim, n in enumerate(get(inputs, p).shape) if n == size}
                )
                for size in sizes
            }
            operator.groups = candidates
            operator.groups = {
                name: pairs for name, pairs in candidates.items() if _may_change(operator, inputs, name, pairs[0])
            }
    return operator.groups


def _may_change(operator: Operator, inputs: Sequence, group: str, first: tuple[int, int]) -> bool:
    i, dim = first
    place = next(p for p in places_of_tensors(inputs) if p[0] == i)
    try:
        other = resize(operator, inputs, group, 2 * get(inputs, place).shape[dim])
    except (RuntimeError, IndexError):  # a list of tensors of different sizes
        return False
    return accepts(operator, other) and (operator.reference is None or expected_or_none(operator, other) is not None)


def size_of(operator: Operator, inputs: Sequence, group: str) -> tuple[int, int]:
    """The size of a group now, and the number of elements of the largest input with it, for each unit of the size."""
    sizes, elements = [], []
    for i, dim in groups_of(operator, inputs)[group]:
        for place in places_of_tensors(inputs):
            if place[0] == i:
                sizes.append(get(inputs, place).shape[dim])
                elements.append(get(inputs, place).numel() // max(sizes[-1], 1))
    return max(sizes), max(elements)


def elements_with(operator: Operator, inputs: Sequence, group: str, size: int) -> int:
    """Of the largest input, if the sizes of a group become `size`: both sides of a square may belong to it."""
    most = 0
    for place in places_of_tensors(inputs):
        dims = {dim for i, dim in groups_of(operator, inputs)[group] if i == place[0]}
        shape = get(inputs, place).shape
        most = max(most, math.prod(size if dim in dims else n for dim, n in enumerate(shape)))
    return most


def is_affordable(operator: Operator, inputs: Sequence, group: str, size: int) -> bool:
    """Whether a call with this size takes less than two seconds, by a call with a smaller one, and its memory is small.
    A loop in Python, or a matrix product, is slow without being wrong."""
    if elements_with(operator, inputs, group, size) > 2**24:
        return False
    dtypes = tuple(get(inputs, place).dtype for place in places_of_tensors(inputs))
    known, key = operator.call_seconds, (group, min(size, 257), dtypes)
    if key not in known:
        sample = resize(operator, inputs, group, min(size, 257))
        start = time.monotonic()
        accepts(operator, sample)
        known[key] = time.monotonic() - start
    return known[key] * max(size / 257, 1) < 2


def small_sizes(operator: Operator, device: str, largest: int = 9) -> list[tuple[str, int]]:
    """Pairs of a group and a size from 1 on."""
    inputs = operator.fresh(device)
    return [
        (group, size)
        for group in groups_of(operator, inputs)
        for size in range(1, max(largest, size_of(operator, inputs, group)[0]) + 1)
    ]


def resized_or_not(operator: Operator, device: str, group: str | None, size: int, seed: int = 0) -> list:
    inputs = operator.fresh(device, seed)
    return inputs if group is None else resize(operator, inputs, group, size)


# --- other ----------------------------------------------------------------------------------------------------------


def write_unseen(x: Tensor, values: Tensor) -> None:
    """Write as a kernel does: torch's version counter stays."""
    x.data.copy_(values)


UNCLEAR_TYPES = (AttributeError, KeyError, NameError, ZeroDivisionError, RecursionError, SystemError, UnicodeError)
UNCLEAR_WORDS = (
    "INTERNAL ASSERT",
    "CUDA error",
    "CUDA driver error",
    "invalid configuration",
    "_M_range_check",
    "bad_alloc",
    "basic_string",
    "list index out of range",
    "tuple index out of range",
    "unknown error",
    "is not subscriptable",
)


def is_unclear(error: BaseException) -> bool:
    """The operator broke instead of saying what is wrong. Errors from inside torch count as refusals."""
    message = str(error)
    if "device-side assert" in message:  # how torch's own kernels refuse an index
        return False
    if not message.strip() or any(words in message for words in UNCLEAR_WORDS):
        return True
    is_about_none = "'NoneType'" in message  # says at least that something is None
    return isinstance(error, UNCLEAR_TYPES) and not is_about_none and not _is_raised_by_torch(error)


def is_raised_by_description(operator: Operator, error: BaseException) -> bool:
    """In the lambda that is `call`, so not by the operator: it divides by an argument, for example."""
    code, trace = getattr(operator.call, "__code__", None), error.__traceback__
    if code is None or code.co_name != "<lambda>" or trace is None:
        return False
    while trace.tb_next:
        trace = trace.tb_next
    return trace.tb_frame.f_code in (code, *code.co_consts)  # the latter has comprehensions in it


def _is_raised_by_torch(error: BaseException) -> bool:
    trace, last = error.__traceback__, None
    while trace:
        last, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return last is not None and str(Path(torch.__file__).parent) in last
