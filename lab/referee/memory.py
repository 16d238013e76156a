"""Memory: strides, neighbours, aliases, what is written, what is kept."""

import ctypes
import gc
import weakref

import torch
from torch.utils._pytree import tree_leaves

from .operator import Operator, Spy, bound_arguments, copies, get, places_of_tensors, put
from .registry import Trials, check, trial
from .trial import (
    NotApplicable,
    cast,
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
from .views import REPEATING, VIEWS, amid, at_page, gap, view_of


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


def written_view_is_right(operator: Operator, device: str, place: tuple, view: str) -> None:
    """The view gets the values, and the memory around it keeps its own."""
    inputs = operator.fresh(device)
    plain = copies(inputs)
    right = [x.clone() for x in operator.run(plain)]
    target = view_of(get(inputs, place), view)
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


@check("refuse an output of the wrong shape: the compiler has planned its memory", "5_kinds", because_of=("values",))
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
    torch.utils.deterministic.fill_uninitialized_memory = True
    found = operator.run(copies(inputs))
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


def _undeclared_aliases(function, args, kwargs, returned) -> list[str]:
    """What a call of the operator shares without its schema saying so."""
    problems = []
    results = returned if isinstance(returned, (tuple, list)) else [returned]
    declared = function._schema.returns
    seen = []
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


@check("return a clone(), or decide in Python whether to call", "5_kinds", opcheck=("test_schema",))
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
        return returned

    before = [get(inputs, place).detach().clone() for place in places_of_tensors(inputs)]
    with Spy(operator.packet, watch):
        operator.call(*inputs)
    for place, old in zip(places_of_tensors(inputs), before, strict=True):
        if place not in operator.written():
            require(same_bits([get(inputs, place).detach()], [old]), f"input {place[0]} is changed by the call")


@check("declare what is written, as Tensor(a!)", "5_kinds", opcheck=("test_schema",))
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


@check("call torch.autograd.graph.increment_version(x) after the kernel; custom_op does so for mutates_args", "5_kinds")
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
    "refuse arguments that share memory, or read each element before it is written", "5_kinds", because_of=("values",)
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


@check("read inputs only", "5_kinds", because_of=("writes", "values"))
def same_input(operator: Operator, device: str) -> Trials:
    """May two inputs be the same tensor?"""
    inputs = operator.fresh(device)
    places = [place for place in places_of_tensors(inputs) if place not in operator.written()]
    for i, place in enumerate(places):
        for other in places[i + 1 :]:
            x, y = get(inputs, place), get(inputs, other)
            if (x.shape, x.dtype) == (y.shape, y.dtype):
                yield trial(same_tensor_twice, place=place, other=other)


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
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


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
    require(min(grown) < 8 * elements, message)


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
        if is_affordable(operator, inputs, group, 20 * size):  # about 60 calls
            yield trial(memory_does_not_grow, group=group, size=size)


def result_is_ordinary(operator: Operator, device: str) -> None:
    """A plain tensor, with memory of its own for each element, on the device of the inputs."""
    inputs = operator.fresh(device)
    for k, x in enumerate(operator.run(inputs)):
        require(type(x) is torch.Tensor, f"result {k} is a {type(x).__name__}, expected a tensor")
        require(x.layout == torch.strided, f"result {k} has the layout {x.layout}")
        require(not x.is_neg() and not x.is_conj(), f"result {k} has a sign or conjugation still to be applied")
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
        needed = (x.storage_offset() + last) * x.element_size()
        has_memory = not x.numel() or x.untyped_storage().nbytes() >= needed
        require(has_memory, f"result {k} needs {needed} bytes and has {x.untyped_storage().nbytes()}")


@check("return plain tensors that torch has allocated", "3_operator")
def plain_results(operator: Operator, device: str) -> Trials:
    """Is each result an ordinary tensor?"""
    yield trial(result_is_ordinary)
