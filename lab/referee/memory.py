"""Memory: strides, neighbours, elements that are never written, leaks."""

import copy
import ctypes
import gc
import pickle
import time
import weakref
from collections.abc import Sequence

import torch

from .operator import Operator, copies, get, places_of_tensors, put
from .registry import Trials, check, trial
from .trial import (
    NotApplicable,
    accepts,
    compare,
    groups_of,
    is_affordable,
    places_with_gradient,
    require,
    resize,
    resized_or_not,
    same_bits,
    size_of,
    small_sizes,
)
from .views import VIEWS, amid, at_page, gap, view_of


def view_is_read(operator: Operator, device: str, places: list, view: str) -> None:
    """As from contiguous tensors with the values of these views."""
    inputs = operator.fresh(device)
    for place in places:
        put(inputs, place, view_of(get(inputs, place), view))
    plain = [x.contiguous() if isinstance(x, torch.Tensor) else x for x in copies(inputs)]
    for place in places:
        put(plain, place, get(inputs, place).clone(memory_format=torch.contiguous_format).resolve_neg().resolve_conj())
    right = [x.clone() for x in operator.run(plain)]
    found = operator.run(inputs)
    compare(operator, found, right, what=f"inputs {places} are views ({view}); result")


@check(
    "use the strides, or call contiguous() before you take a pointer",
    "2_mistakes",
    because_of=("uninitialized", "neighbours"),
    of_random=False,
)
def strides(operator: Operator, device: str) -> Trials:
    """Are views read as what they are: strided, unaligned, expanded, overlapping, negative, conjugate?"""
    inputs = operator.fresh(device)
    written = operator.written()
    places = [place for place in places_of_tensors(inputs) if place not in written]
    for view in VIEWS:
        fitting = [place for place in places if view_of(get(inputs, place), view) is not None]
        for place in fitting:
            yield trial(view_is_read, places=[place], view=view)
        if len(fitting) > 1 and view != "rows far apart":
            yield trial(view_is_read, places=fitting, view=view)


def size_one_is_read(operator: Operator, device: str, group: str) -> None:
    """The stride of a dimension of size 1 means nothing, and may be any number."""
    plain = resize(operator, operator.fresh(device), group, 1)
    inputs = copies(plain)
    for place in places_of_tensors(inputs):
        x = get(inputs, place)
        strange = [7919 if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
        put(inputs, place, x.as_strided(x.shape, strange))
    compare(operator, operator.run(inputs), operator.run(plain))


@check("skip dimensions of size 1 where you compare strides", "3_operator", because_of=("strides",))
def size_one(operator: Operator, device: str) -> Trials:
    """Does the stride of a dimension of size 1 change nothing?"""
    for group in groups_of(operator, operator.fresh(device)):
        yield trial(size_one_is_read, group=group)


def neighbours_do_not_matter(operator: Operator, device: str, place: tuple, group: str | None, size: int) -> None:
    """The result with other numbers around an input, which stay."""
    results = []
    inputs = resized_or_not(operator, device, group, size)
    values = (gap(get(inputs, place)), 0, 0) if get(inputs, place).is_floating_point() else (0, 1, 0)
    for value in values:
        some = copies(inputs)
        x, memory = amid(get(some, place), value)
        put(some, place, x)
        results.append([y.clone() for y in operator.run(some)])
        around = torch.cat([memory[:64], memory[-64:]])
        is_kept = same_bits([around], [torch.full_like(around, value)])
        require(is_kept, f"memory next to input {place[0]} was written")
    if not same_bits(results[1], results[2]):
        raise NotApplicable("two calls differ anyway")
    require(same_bits(results[0], results[1]), f"the result depends on memory next to input {place[0]}")


@check("stop at the last element: guard the incomplete block or vector", "9_kernels", because_of=("values",))
def neighbours(operator: Operator, device: str) -> Trials:
    """Does the result depend only on the tensors, and not on memory next to them, and is none written there?"""
    inputs = operator.fresh(device)
    for place in places_of_tensors(inputs):
        yield trial(neighbours_do_not_matter, place=place, group=None, size=0)
        for group in groups_of(operator, inputs):
            for size in (1, 2, 3, 5, 33, 259):
                yield trial(neighbours_do_not_matter, place=place, group=group, size=size)


def ends_with_its_memory(
    operator: Operator, device: str, place: tuple, is_end: bool, group: str | None, size: int
) -> None:
    """One access before the first element, or after the last, ends the process."""
    inputs = resized_or_not(operator, device, group, size)
    right = [x.clone() for x in operator.run(copies(inputs))]
    put(inputs, place, at_page(get(inputs, place), is_end))
    compare(operator, operator.run(inputs), right)


@check(
    "stop at the last element: guard the incomplete block or vector",
    "9_kernels",
    because_of=("neighbours", "values"),
    on=("cpu",),
)
def page_ends(operator: Operator, device: str) -> Trials:
    """Is no memory read before the first or after the last element?"""
    inputs = operator.fresh(device)
    for place in places_of_tensors(inputs):
        if get(inputs, place).numel():
            for is_end in (True, False):
                yield trial(ends_with_its_memory, place=place, is_end=is_end, group=None, size=0)
                for group in groups_of(operator, inputs):
                    for size in (1, 3, 16, 33, 1024):
                        yield trial(ends_with_its_memory, place=place, is_end=is_end, group=group, size=size)


def heap_stays_whole(operator: Operator, device: str, group: str | None, size: int) -> None:
    """glibc keeps the size of each piece of memory right before it. After a call, what follows a result must still be
    such a size."""
    libc = ctypes.CDLL(None)
    libc.malloc_usable_size.argtypes, libc.malloc_usable_size.restype = [ctypes.c_void_p], ctypes.c_size_t
    inputs = resized_or_not(operator, device, group, size)
    for x in operator.run(inputs):
        address = x.untyped_storage().data_ptr()
        own_size = ctypes.c_size_t.from_address(address - 8).value if address else 2
        is_own_mapping = bool(own_size & 2)
        is_used_up = libc.malloc_usable_size(address) == x.untyped_storage().nbytes() if not is_own_mapping else False
        if is_used_up:
            following = ctypes.c_size_t.from_address(address + x.untyped_storage().nbytes()).value
            is_size = following & 0b1001 == 1 and 16 <= following < 2**32
            require(is_size, f"memory after a result of {x.untyped_storage().nbytes()} bytes was written")


@check("stop at the last element: guard the incomplete block or vector", "9_kernels", on=("cpu",))
def after_results(operator: Operator, device: str) -> Trials:
    """Is no memory written after the last element of a result?"""
    inputs = operator.fresh(device)
    if not groups_of(operator, inputs):
        yield trial(heap_stays_whole, group=None, size=0)
    for group in groups_of(operator, inputs):
        for size in range(1, 40):
            yield trial(heap_stays_whole, group=group, size=size)


def unwritten_elements_show(operator: Operator, device: str, group: str | None, size: int) -> None:
    """New memory of torch is full of NaN, or of the largest integers."""
    inputs = resized_or_not(operator, device, group, size)
    right = [x.clone() for x in operator.run(copies(inputs))]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        found = operator.run(copies(inputs))
    finally:
        torch.use_deterministic_algorithms(False)
    for k, (x, y) in enumerate(zip(found, right, strict=True)):
        most = (
            torch.iinfo(x.dtype).max
            if not x.dtype.is_floating_point and not x.is_complex() and x.dtype != torch.bool
            else None
        )
        is_filler = x.isnan() & ~y.isnan() if most is None else (x == most) & (y != most)
        count = int(is_filler.sum())
        require(not count, f"{count} of {x.numel()} elements of result {k} (shape {[*x.shape]}) are never written")


@check("write each element of the result, the last ones of an incomplete vector, too", "9_kernels")
def unwritten(operator: Operator, device: str) -> Trials:
    """Is each element of the results written, for each size?"""
    yield trial(unwritten_elements_show, group=None, size=0)
    for group, size in small_sizes(operator, device, largest=20):
        yield trial(unwritten_elements_show, group=group, size=size)


def fillers_do_not_matter(operator: Operator, device: str, group: str | None, size: int) -> None:
    """New memory of the C library, too (numpy's, a std::vector's), is full of some byte, and then of another one."""
    mallopt = ctypes.CDLL(None).mallopt
    inputs = resized_or_not(operator, device, group, size)
    results = []
    for byte in (0x41, 0x41, 0x7E, 0x7E, 0xC1, 0xC1):
        mallopt(-6, byte)  # M_PERTURB
        results.append([x.clone() for x in operator.run(copies(inputs))])
        mallopt(-6, 0)
    if not all(same_bits(x, y) for x, y in zip(results[::2], results[1::2], strict=True)):
        raise NotApplicable("two calls differ anyway")
    is_same = all(same_bits(x, results[0]) for x in results)
    require(is_same, "the result depends on memory that was never written")


@check("set accumulators and scratch memory to zero", "9_kernels", because_of=("unwritten",), on=("cpu",))
def uninitialized(operator: Operator, device: str) -> Trials:
    """Is no memory read before it is written?"""
    yield trial(fillers_do_not_matter, group=None, size=0)
    for group, size in small_sizes(operator, device):
        yield trial(fillers_do_not_matter, group=group, size=size)


def _count_tensors() -> int:
    gc.collect()
    return sum(isinstance(x, torch.Tensor) for x in gc.get_objects())


def nothing_is_kept(operator: Operator, device: str, needs_grad: bool, has_backward: bool) -> None:
    """Tensors alive after ten calls, and the inputs of the last one."""

    def call():
        inputs = operator.fresh(device)
        for place in places_with_gradient(operator, inputs) if needs_grad else ():
            get(inputs, place).requires_grad_()
        found = [x for x in operator.run(inputs) if x.requires_grad]
        if has_backward and found:
            torch.autograd.backward([x.sum() for x in found])
        return [weakref.ref(get(inputs, place)) for place in places_of_tensors(inputs)]

    call()
    before = _count_tensors()
    for _ in range(10):
        inputs = call()
    kept = _count_tensors() - before
    gc.collect()
    require(kept < 5, f"{kept} tensors are kept after 10 calls")
    require(not any(x() is not None for x in inputs), "an input is kept after the call")


def _resident_bytes() -> int:
    """Without the memory that is free, but which malloc has kept."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def _is_quick(operator: Operator, inputs: Sequence, group: str, size: int) -> bool:
    """Whether one of three calls takes less than 2 ms. So 16 times the size takes half a second, at most, even where
    each element meets each other one."""
    seconds = []
    for _ in range(3):
        some = resize(operator, inputs, group, size)
        start = time.monotonic()
        accepts(operator, some)
        seconds.append(time.monotonic() - start)
    return min(seconds) < 2e-3


def memory_does_not_grow(operator: Operator, device: str, group: str, size: int) -> None:
    inputs = resize(operator, operator.fresh(device), group, size)
    on_gpu = device.startswith("cuda")
    used = torch.cuda.memory_allocated if on_gpu else _resident_bytes
    grown, elements = [], max(x.numel() for x in operator.run(copies(inputs)))
    for _ in range(3):
        before = used()
        for _ in range(16):
            operator.run(inputs if not operator.written() else copies(inputs))
        gc.collect()
        grown.append(used() - before)
    message = f"memory grows by {min(grown) // 16} bytes in each call with results of {elements} elements"
    noise = 0 if on_gpu else 2**20  # a process's own caches fill
    require(min(grown) < max(8 * elements, noise), message)


@check(
    "keep nothing in globals, and save tensors by ctx.save_for_backward",
    "4_gradients",
    because_of=("stale", "kept_results", "interleaved"),
)
def leaks(operator: Operator, device: str) -> Trials:
    """Is all memory given back, with gradients, too?"""
    for needs_grad, has_backward in ((False, False), (True, False), (True, True)):
        yield trial(nothing_is_kept, needs_grad=needs_grad, has_backward=has_backward)
    inputs = operator.fresh(device)
    for group in list(groups_of(operator, inputs))[:1]:
        size = 2**18 // max(size_of(operator, inputs, group)[1], 1) + 1
        if is_affordable(operator, inputs, group, size) and _is_quick(operator, inputs, group, size // 16):
            yield trial(memory_does_not_grow, group=group, size=size)


def result_is_ordinary(operator: Operator, device: str) -> None:
    """A plain tensor, with memory of its own for each element, on the device of the inputs."""
    inputs = operator.fresh(device)
    for k, x in enumerate(operator.run(inputs)):
        require(type(x) is torch.Tensor, f"result {k} is a {type(x).__name__}, expected a tensor")
        require(x.layout == torch.strided, f"result {k} has the layout {x.layout}")
        require(not x.is_neg() and not x.is_conj(), f"result {k} has a sign or conjugation still to be applied")
        if x.dtype == torch.bool:
            is_bit = bool((x.view(torch.uint8) <= 1).all())
            require(is_bit, f"result {k} is bool, and has bytes that are neither 0 nor 1")
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
        needed = (x.storage_offset() + last) * x.element_size()
        copied = [copy.deepcopy(x.detach()), pickle.loads(pickle.dumps(x.detach()))]
        is_same = all(same_bits([each], [x.detach()]) for each in copied)
        require(is_same, f"result {k} changes by copy.deepcopy or pickle")
        has_memory = not x.numel() or x.untyped_storage().nbytes() >= needed
        require(has_memory, f"result {k} needs {needed} bytes and has {x.untyped_storage().nbytes()}")


@check("return plain tensors that torch has allocated", "3_operator")
def plain_results(operator: Operator, device: str) -> Trials:
    """Is each result an ordinary tensor?"""
    yield trial(result_is_ordinary)
