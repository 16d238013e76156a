"""Values: is the result right, for every dtype, size and value, and in every call?"""

import math
import time
from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .operator import Operator, copies, get, places_of_tensors, put
from .registry import Trials, check, trial
from .trial import (
    FLOATS,
    NotApplicable,
    Wrong,
    accepts,
    cast,
    compare,
    compare_values,
    compare_with_reference,
    expected,
    expected_or_none,
    floating,
    groups_of,
    is_affordable,
    is_integer,
    other_values,
    require,
    resize,
    resize_without_ties,
    same_bits,
    size_of,
    write_unseen,
)

OTHER_DTYPES = (*FLOATS, torch.int32, torch.int64, torch.bool, torch.complex64)


SPECIAL = (math.nan, math.inf, -math.inf, 0.0)
DENORMAL = 1e-39  # in float32
RANGES = ((100.0, 0.0), (1.0, 100.0), (DENORMAL, 0.0))  # factor, summand: large, far from 0, almost 0


def result_is_right(operator: Operator, device: str, seed: int) -> None:
    inputs = operator.fresh(device, seed)
    found = operator.run(copies(inputs))
    compare_with_reference(operator, found, inputs)


@check(
    "compare with the reference on the smallest input that fails",
    "3_operator",
    because_of=("unwritten", "after_results"),
)
def values(operator: Operator, device: str) -> Trials:
    """Is the result that of the reference?"""
    for seed in range(3):
        yield trial(result_is_right, seed=seed)


def dtype_is_right(operator: Operator, device: str, dtype: torch.dtype) -> None:
    inputs = cast(operator.fresh(device), dtype)
    for place in places_of_tensors(inputs):
        if get(inputs, place).is_complex():
            put(inputs, place, get(inputs, place) * (1 + 0.5j))
    if dtype in (torch.int32, torch.int64, torch.bool) and any(not x.is_floating_point() for x in operator.run(inputs)):
        raise NotApplicable("results of integers: equal values may be taken in another order")
    found = operator.run(copies(inputs))
    compare_with_reference(operator, found, inputs, has_ties=True)


@check("refuse the dtypes that the kernel does not compute", "2_mistakes", because_of=("values", "unwritten"))
def dtypes(operator: Operator, device: str) -> Trials:
    """Is each dtype computed or refused: floating-point, integers, bool, complex?"""
    for dtype in OTHER_DTYPES:
        yield trial(dtype_is_right, dtype=dtype)


def mixed_dtypes_are_right(operator: Operator, device: str, place: tuple, dtype: torch.dtype) -> None:
    """As the reference, or as if the input had been converted to the dtype of the others first."""
    inputs = operator.fresh(device)
    mixed = cast(inputs, dtype, only=place)
    found = operator.run(copies(mixed))
    right = expected(operator, cast(mixed, get(inputs, place).dtype, only=place))
    other = expected_or_none(operator, mixed) or right
    require(len(found) == len(right), f"{len(found)} results, expected {len(right)}")
    has_floats = any(y.is_floating_point() for y in right)
    for k, (x, y, z) in enumerate(zip(found, right, other, strict=True)):
        if has_floats and not y.is_floating_point():
            continue  # equal values may be taken in another order
        require(x.shape in (y.shape, z.shape), f"result {k} has shape {[*x.shape]}, expected {[*y.shape]}")
        low = max(operator.tolerance_of(each) for each in (dtype, get(inputs, place).dtype, x.dtype, y.dtype))
        try:
            compare_values(f"result {k}", x, y, low)
        except Wrong:
            compare_values(f"result {k}", x, z, low)


def fractions_are_refused(operator: Operator, device: str, place: tuple) -> None:
    """Numbers with a half where the description has integers, as 2.5 for an index."""
    inputs = operator.fresh(device)
    put(inputs, place, get(inputs, place) + 0.5)
    found = operator.run(copies(inputs))
    right = expected_or_none(operator, inputs)
    message = f"input {place[0]} is a tensor of {get(inputs, place).dtype} with fractions, which is accepted"
    require(right is not None or operator.reference is None, f"{message}; the reference refuses it")
    if right is not None:
        compare(operator, found, right, what=f"{message}; result", has_ties=True)


@check(
    "check that all dtypes agree before the kernel reads a pointer", "2_mistakes", because_of=("values", "unwritten")
)
def mixed_dtypes(operator: Operator, device: str) -> Trials:
    """Is an input of another dtype than the rest converted or refused?"""
    inputs = operator.fresh(device)
    for place in places_of_tensors(inputs):
        is_float = get(inputs, place).is_floating_point()
        if is_integer(get(inputs, place)) and place not in operator.written():
            yield trial(fractions_are_refused, place=place)
        for dtype in (
            (torch.float64, torch.float16, torch.int32) if is_float else (torch.int32, torch.int64, torch.int16)
        ):
            if dtype != get(inputs, place).dtype:
                yield trial(mixed_dtypes_are_right, place=place, dtype=dtype)


def long_sum_is_right(operator: Operator, device: str, dtype: torch.dtype, group: str, size: int, scale: float) -> None:
    """Sums that leave the range or the precision of a 16-bit type on the way, while the result does not."""
    inputs = cast(resize(operator, operator.fresh(device), group, size), torch.float64)
    for place in floating(inputs):
        put(inputs, place, (get(inputs, place).abs() * scale).to(dtype))
    found = operator.run(copies(inputs))
    right = [x.to(dtype) for x in expected(operator, cast(inputs, torch.float64))]
    theirs = expected(operator, inputs)
    is_finite = all(x.isfinite().all() for x in [*right, *theirs] if x.is_floating_point())
    if not is_finite:
        raise NotApplicable("the reference leaves the range, too")
    for factor in (1, 2):  # the reference, in the same dtype, has to be near for the question to be fair
        try:
            compare(operator, theirs, right, factor)
        except Wrong:
            continue
        return compare(operator, found, right, 2 * factor)
    raise NotApplicable("the reference loses these digits, too")


@check("compute in float32 and round once, at the end", "5_your_own", because_of=("values", "dtypes", "odd_sizes"))
def long_sums(operator: Operator, device: str) -> Trials:
    """Do float16 and bfloat16 survive long sums and large numbers?"""
    inputs = operator.fresh(device)
    for dtype in (torch.float16, torch.bfloat16):
        if accepts(operator, cast(inputs, dtype)):
            for group in groups_of(operator, inputs):
                for scale in (1.0, 100.0) if is_affordable(operator, inputs, group, 4099) else ():
                    yield trial(long_sum_is_right, dtype=dtype, group=group, size=4099, scale=scale)


def range_is_right(operator: Operator, device: str, dtype: torch.dtype, factor: float, summand: float) -> None:
    """A square or an exponential leaves the range, a difference of large numbers loses its digits, a denormal becomes
    0: but not in the reference, in the same dtype. If a square makes small numbers 0, denormals say nothing."""
    if factor == DENORMAL:
        try:
            range_is_right(operator, device, dtype, factor=1e-30, summand=0.0)
        except Wrong:
            raise NotApplicable("numbers that are small, but not denormal, become 0, too") from None
    inputs = cast(operator.fresh(device), torch.float64)
    for place in floating(inputs):
        put(inputs, place, (get(inputs, place) * factor + summand).to(dtype))
    found = operator.run(copies(inputs))
    right = [x.to(y.dtype) for x, y in zip(expected(operator, cast(inputs, torch.float64)), found, strict=True)]
    try:
        compare(operator, expected(operator, inputs), right, has_ties=True)
    except Wrong:
        raise NotApplicable("the reference loses these digits, too") from None
    what = f"numbers times {factor:g} plus {summand:g}; result"
    compare(operator, found, right, factor=2, what=what, has_ties=True)


@check(
    "subtract the maximum before exp(), the mean before squares, and do not flush denormals",
    "5_your_own",
    because_of=("values", "dtypes", "long_sums"),
)
def ranges(operator: Operator, device: str) -> Trials:
    """Are large numbers right, those far from 0, and those that are almost 0?"""
    if not accepts(operator, cast(operator.fresh(device), torch.float32)):
        raise NotApplicable("float32 is refused")
    for factor, summand in RANGES:
        yield trial(range_is_right, dtype=torch.float32, factor=factor, summand=summand)


ODD_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 32, 33, 63, 65, 127, 129, 255, 257, 511, 513, 1023, 1025, 4099)


def size_is_right(operator: Operator, device: str, group: str, size: int, factor: float = 1.0) -> None:
    inputs = resize(operator, operator.fresh(device), group, size)
    found = operator.run(copies(inputs))
    compare_with_reference(operator, found, inputs, has_ties=True, factor=factor)  # numbers repeat


def last_elements_count(operator: Operator, device: str, group: str, size: int) -> None:
    """With floating-point numbers that grow, so that none repeats and the last ones are the largest: a maximum that
    leaves out an element then shows."""
    inputs = resize_without_ties(operator, operator.fresh(device), group, size)
    found = operator.run(copies(inputs))
    compare_with_reference(operator, found, inputs)


@check("look at the last, incomplete block or vector", "9_kernels", because_of=("values", "unwritten"))
def odd_sizes(operator: Operator, device: str) -> Trials:
    """Is each size right: 1, odd ones, those around powers of two?"""
    inputs = operator.fresh(device)
    for group in groups_of(operator, inputs):
        for size in ODD_SIZES:
            if is_affordable(operator, inputs, group, size):
                yield trial(size_is_right, group=group, size=size)
                yield trial(last_elements_count, group=group, size=size)


def large_size_is_right(operator: Operator, device: str, group: str, size: int) -> None:
    """If the reference can be computed: one that compares all with all needs too much memory, or time."""
    needed, seconds = cost_of_reference(operator, operator.fresh(device), group, size)
    if needed > _free_memory(device) / 4 or seconds > 20:
        raise NotApplicable(f"the reference would take about {needed / 2**30:.1f} GiB and {seconds:.0f} s")
    size_is_right(operator, device, group, size, factor=10)  # a plain loop in float32 loses digits


def cost_of_reference(operator: Operator, inputs: Sequence, group: str, size: int) -> tuple[float, float]:
    """Bytes of its largest tensor, and seconds, for this size: from two small ones, by the power of the size with which
    the memory grows."""
    if operator.reference is None:
        return 0.0, 0.0
    small = []
    for n in (64, 256):
        sample, largest = resize(operator, inputs, group, n), Largest()
        start = time.monotonic()
        with largest:
            expected_or_none(operator, sample)
        small.append((largest.bytes, time.monotonic() - start))
    (least, _), (most, seconds) = small
    growth = (size / 256) ** max(math.log(max(most, 1) / max(least, 1), 4), 1)
    return most * growth, seconds * growth


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that torch's functions return."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
        self.bytes = max([self.bytes, *sizes])
        return results


@check(
    "count in 64 bits, and give large grids a loop",
    "2_mistakes",
    because_of=("values", "unwritten", "odd_sizes"),
    seconds=120,
)
def large(operator: Operator, device: str) -> Trials:
    """Is it right beyond 65,536 elements, and beyond 65,535 rows (the most that a grid's y and z allow)?"""
    inputs = operator.fresh(device)
    for group in groups_of(operator, inputs):
        unit = max(size_of(operator, inputs, group)[1], 1)
        for size in sorted({70_001 // unit + 1, 70_001}):
            if is_affordable(operator, inputs, group, size):
                yield trial(large_size_is_right, group=group, size=size)


def huge_is_right(operator: Operator, device: str, group: str, dtype: torch.dtype) -> None:
    """The last elements, at least, of tensors with more than 2^31 elements."""
    small = cast(operator.fresh(device), dtype)
    unit = size_of(operator, small, group)[1]
    size = 2**31 // max(unit, 1) + 5
    inputs = resize(operator, small, group, size)
    found = operator.run(inputs)
    right = operator.expected(inputs)
    for x, y in zip(found, right, strict=True):
        x, y = x.flatten(), y.flatten()
        require(x.shape == y.shape, f"{x.numel()} elements, expected {y.numel()}")
        for start in range(0, x.numel(), 2**27):
            some = slice(start, start + 2**27)
            compare_values(f"from element {start} on", x[some], y[some], operator.tolerance_of(y.dtype))


def _free_memory(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info()[0]
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


@check(
    "use int64_t for lengths, indices and products of sizes",
    "2_mistakes",
    because_of=("values", "odd_sizes", "large"),
    unasked_on=("cuda",),  # a CPU takes minutes
    seconds=300,
)
def huge(operator: Operator, device: str) -> Trials:
    """Is it right beyond 2^31 elements? (Where memory allows; on a CPU only if it is named.)"""
    inputs = operator.fresh(device)
    dtype = next((d for d in (torch.float16, torch.float32) if accepts(operator, cast(inputs, d))), None)
    if dtype is None or not groups_of(operator, inputs) or operator.written():
        raise NotApplicable("needs float16 or float32, a size that may change, and an operator that writes no input")
    group = max(groups_of(operator, inputs), key=lambda name: len(groups_of(operator, inputs)[name]))
    needed, free = 2**31 * dtype.itemsize * (3 * len(floating(inputs)) + 4), _free_memory(device)
    if needed > free:
        raise NotApplicable(f"needs {needed / 2**30:.0f} GiB of memory, {free / 2**30:.0f} are free")
    yield trial(huge_is_right, group=group, dtype=dtype)


def empty_is_right(operator: Operator, device: str, group: str) -> None:
    inputs = resize(operator, operator.fresh(device), group, 0)
    right = expected(operator, inputs)
    found = operator.run(copies(inputs))
    compare(operator, found, right)
    if device.startswith("cuda"):  # a launch of no blocks leaves an error for the next line
        torch.cuda.synchronize()
        torch.ones(1, device=device).add_(1).item()


@check(
    "return the empty result before the launch: a grid of no blocks is an error", "5_your_own", because_of=("values",)
)
def empty(operator: Operator, device: str) -> Trials:
    """Are tensors without elements computed as torch does, or refused clearly?"""
    for group in groups_of(operator, operator.fresh(device)):
        yield trial(empty_is_right, group=group)


def special_value_is_right(operator: Operator, device: str, place: tuple, value: float, dtype, step: int) -> None:
    """step: each element (a row of a mask may be all -inf), or every third."""
    inputs = operator.fresh(device) if dtype is None else cast(operator.fresh(device), dtype)
    get(inputs, place).view(-1)[::step] = value
    right = expected(operator, inputs)
    found = operator.run(copies(inputs))
    compare(operator, found, right, factor=10, has_ties=True)


@check("let NaN and infinity through: max(x, 0) hides a NaN", "5_your_own", because_of=("values", "dtypes"))
def special_values(operator: Operator, device: str) -> Trials:
    """Do NaN, infinity and 0 in an input come out as the reference has them?"""
    inputs = operator.fresh(device)
    for dtype in (None, torch.float16):
        if dtype is None or accepts(operator, cast(inputs, dtype)):
            for place in floating(inputs):
                if get(inputs, place).is_contiguous() and get(inputs, place).numel():
                    for value in SPECIAL:
                        for step in (3, 1):
                            yield trial(special_value_is_right, place=place, value=value, dtype=dtype, step=step)


def two_calls_agree(operator: Operator, device: str, group: str | None, size: int) -> None:
    inputs = operator.fresh(device) if group is None else resize(operator, operator.fresh(device), group, size)
    first = [x.clone() for x in operator.run(copies(inputs))]
    for _ in range(5):
        require(same_bits(operator.run(copies(inputs)), first), "two calls with the same inputs differ")


@check(
    "add in a fixed order, or tag the operator nondeterministic",
    "11_reduction",
    because_of=("unwritten", "values", "stale", "uninitialized"),
    of_random=False,
)
def repeated(operator: Operator, device: str) -> Trials:
    """Do two calls with the same inputs give the same bits?"""
    yield trial(two_calls_agree, group=None, size=0)
    inputs = operator.fresh(device)
    for group in groups_of(operator, inputs):
        if is_affordable(operator, inputs, group, 4099):
            yield trial(two_calls_agree, group=group, size=4099)


def earlier_result_is_kept(operator: Operator, device: str, seed: int) -> None:
    first = operator.run(operator.fresh(device))
    kept = [x.clone() for x in first]
    others = operator.fresh(device, seed)
    for place in floating(others):
        get(others, place).mul_(0.5)
    operator.run(others)
    require(same_bits(first, kept), "a later call changes the result of an earlier one")


@check("allocate the result in each call", "6_kinds")
def kept_results(operator: Operator, device: str) -> Trials:
    """Does a result stay as it is when the operator is called again?"""
    for seed in (0, 1):
        yield trial(earlier_result_is_kept, seed=seed)


def new_contents_are_read(operator: Operator, device: str, place: tuple, is_seen: bool) -> None:
    """The same tensors with other contents, written as a kernel writes them or by torch. 20 times, as a cache may
    begin late."""
    inputs = operator.fresh(device)
    for k in range(20):
        old = get(inputs, place)
        new = old * (0.5 + 0.05 * k) if old.is_floating_point() else other_values(operator, place, old, n=1)
        if is_seen:
            old.copy_(new)
        else:
            write_unseen(old, new)
        again = copies(inputs)
        compare(operator, operator.run(inputs), operator.run(again), what=f"contents {k} of input {place[0]}; result")


@check(
    "compute in each call; no address or version says that contents are the same",
    "6_kinds",
    because_of=("unwritten", "values"),
)
def stale(operator: Operator, device: str) -> Trials:
    """Is a result computed from what the inputs hold now? (A cache also deceives a timer.)"""
    inputs = operator.fresh(device)
    written = operator.written()
    for place in places_of_tensors(inputs):
        if place not in written:
            for is_seen in (True, False):
                yield trial(new_contents_are_read, place=place, is_seen=is_seen)
