"""GPU: streams, devices, CUDA graphs, synchronization, memory around results.

torch.cuda._sleep keeps a stream busy: a kernel that does not wait for its turn then shows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .gradients import function_of, leaves_of, weight
from .operator import Operator, copies, first_line, get, places_of_tensors, put
from .registry import Trials, check, trial
from .trial import (
    NotApplicable,
    Refused,
    compare,
    filled,
    floating,
    groups_of,
    other_values,
    places_with_gradient,
    require,
    resize,
    resized_or_not,
    size_of,
)

CYCLES = 100_000_000  # for torch.cuda._sleep: 50 ms or more
ELEMENTS = 2**20  # take a kernel long enough to be seen


def _larger(operator: Operator, device: str) -> list:
    """Inputs with about ELEMENTS elements, if a size may change."""
    inputs = operator.fresh(device)
    for group in list(groups_of(operator, inputs))[:1]:
        size = ELEMENTS // max(size_of(operator, inputs, group)[1], 1) + 1
        inputs = resize(operator, inputs, group, size)
    return inputs


def _garbled(operator: Operator, inputs: Sequence) -> list:
    """Other numbers of the same kind."""
    found = copies(inputs)
    for place in places_of_tensors(found):
        x = get(found, place)
        put(found, place, x * -3 + 1 if x.is_floating_point() else other_values(operator, place, x, n=1))
    return found


def _copy_all(targets: Sequence, sources: Sequence) -> None:
    for place in places_of_tensors(targets):
        get(targets, place).copy_(get(sources, place))


def late_inputs_are_waited_for(operator: Operator, device: str) -> None:
    """The current stream writes the inputs late. A kernel on another stream reads them too early."""
    values = _larger(operator, device)
    right = [x.clone() for x in operator.run(copies(values))]
    inputs = _garbled(operator, values)
    operator.run(copies(inputs))  # loads kernels and memory, which may wait for the GPU
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        _copy_all(inputs, values)
        found = operator.run(inputs)
    torch.cuda.synchronize()
    compare(operator, found, right, what="inputs are written late on the current stream; result")


def late_gradient_is_waited_for(operator: Operator, device: str) -> None:
    """The same for the backward pass: the gradient that arrives is written late."""
    inputs = _larger(operator, device)
    places = places_with_gradient(operator, inputs)
    if not places:
        raise NotApplicable("no input has a gradient")

    def passes(has_delay: bool) -> list[Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            leaves = leaves_of(inputs, places)
            results = [y for y in function_of(operator, inputs, places)(*leaves) if y.requires_grad]
            weights = [weight(y) for y in results]
            late = [torch.full_like(w, 7.0) for w in weights]
            torch.cuda.synchronize()
            if has_delay:
                torch.cuda._sleep(CYCLES)
            for x, w in zip(late, weights, strict=True):
                x.copy_(w)
            found = torch.autograd.grad(results, leaves, late, allow_unused=True)
        torch.cuda.synchronize()
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]

    right = passes(has_delay=False)
    compare(operator, passes(has_delay=True), right, factor=20, what="the arriving gradient is written late; gradient")


def result_is_ready_for_its_stream(operator: Operator, device: str) -> None:
    """Work right after the call, on the current stream, reads the result, and only this stream is waited for. Memory
    that may become the result holds other numbers: those of a call with other inputs, and 7."""
    values = _larger(operator, device)
    right = [x.clone() for x in operator.run(copies(values))]
    for _ in range(3):
        operator.run(_garbled(operator, values))
        stream, inputs = torch.cuda.Stream(), copies(values)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            old = [torch.full_like(x, 7) for x in right]
            del old
            torch.cuda._sleep(CYCLES // 4)
            found = [x.clone() for x in operator.run(inputs)]
            for place in places_of_tensors(inputs):
                get(inputs, place).zero_()
        stream.synchronize()
        compare(operator, found, right, what="read on the current stream right after the call; result")
        torch.cuda.synchronize()


def freed_inputs_may_be_reused(operator: Operator, device: str) -> None:
    """The inputs are freed right after the call, and their memory is written by what comes next on the stream."""
    values = _larger(operator, device)
    right = [x.clone() for x in operator.run(copies(values))]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        inputs = copies(values)
        torch.cuda._sleep(CYCLES // 4)
        sizes = [(get(inputs, place).shape, get(inputs, place).dtype) for place in places_of_tensors(inputs)]
        found = operator.run(inputs)
        found = [x.clone() for x in found] if operator.written() else found
        del inputs
        others = [torch.full(shape, 3, dtype=dtype, device=device) for shape, dtype in sizes]
    torch.cuda.synchronize()
    compare(operator, found, right, what=f"{len(others)} tensors took the memory of the inputs; result")


@check(
    "launch on the current stream: aoti_torch_get_current_cuda_stream, or at::cuda::getCurrentCUDAStream()",
    "2_mistakes",
    because_of=("values",),
    on=("cuda",),
)
def current_stream(operator: Operator, device: str) -> Trials:
    """Does all work happen on the current stream, in its turn, backward too?"""
    yield trial(late_inputs_are_waited_for)
    yield trial(result_is_ready_for_its_stream)
    yield trial(freed_inputs_may_be_reused)
    yield trial(late_gradient_is_waited_for)


def other_device_is_used(operator: Operator, device: str, current: int, of_inputs: int) -> None:
    """The tensors are on one GPU while another one is current."""
    torch.cuda.set_device(of_inputs)
    home = f"cuda:{of_inputs}"
    inputs = operator.fresh(home)
    for place in places_of_tensors(inputs):
        put(inputs, place, get(inputs, place).to(home))
    right = [x.clone() for x in operator.run(copies(inputs))]
    torch.cuda.synchronize()
    torch.cuda.set_device(current)
    found = operator.run(copies(inputs))
    is_kept = torch.cuda.current_device() == current
    torch.cuda.synchronize(of_inputs)
    torch.cuda.synchronize(current)
    require(is_kept, "the current device has changed")
    compare(operator, found, right, what=f"tensors on cuda:{of_inputs}, current device {current}; result")


@check("make the tensors' device current with a guard", "2_mistakes", because_of=("values",), on=("cuda",))
def current_device(operator: Operator, device: str) -> Trials:
    """Is it right while another GPU is current?"""
    if torch.cuda.device_count() < 2:
        raise NotApplicable("needs two GPUs")
    for current, of_inputs in ((0, 1), (1, 0)):
        yield trial(other_device_is_used, current=current, of_inputs=of_inputs)


def replay_reads_new_contents(operator: Operator, device: str, has_backward: bool) -> None:
    """Captured once, replayed twice with other contents of the same tensors."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs) if has_backward else []
    if has_backward and not places:
        raise NotApplicable("no input has a gradient")
    for place in places:
        get(inputs, place).requires_grad_()

    def step() -> list[Tensor]:
        results = operator.run(filled(operator, inputs, [], []))  # clones of what is written: each replay starts anew
        if not places:
            return results
        used = [y for y in results if y.requires_grad]
        found = torch.autograd.grad(
            used, [get(inputs, p) for p in places], [weight(y) for y in used], allow_unused=True
        )
        return [*results, *(x for x in found if x is not None)]

    first, second = copies(inputs), _garbled(operator, inputs)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    right = []
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # backward returns to the stream of a leaf's first use: not the default one
        for values in (second, first):
            with torch.no_grad():
                _copy_all(inputs, values)
            right.append([x.detach().clone() for x in step()])
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph):
            found = step()
    except RuntimeError as error:
        raise Refused(f"the capture fails: {first_line(error)}") from None
    for values, expected in zip((second, first), right, strict=True):
        with torch.no_grad():
            for x in found:
                if all(stride or size == 1 for size, stride in zip(x.shape, x.stride(), strict=True)):
                    x.detach().fill_(77)
            _copy_all(inputs, values)  # last: a gradient may be an input itself
        graph.replay()
        torch.cuda.synchronize()
        compare(operator, [x.detach() for x in found], expected, factor=5, what="a CUDA graph, replayed; result")


@check(
    "decide nothing on the host by contents or counters, and launch on the current stream; or tag it cudagraph_unsafe",
    "6_kinds",
    because_of=("values", "current_stream", "stale", "repeated"),
    on=("cuda",),
)
def cuda_graph(operator: Operator, device: str) -> Trials:
    """Is a CUDA graph, replayed with other contents, right; or the capture refused?"""
    for has_backward in (False, True):
        yield trial(replay_reads_new_contents, has_backward=has_backward)


def host_goes_on(operator: Operator, device: str, has_backward: bool) -> None:
    """The stream sleeps; the call returns while it still does."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    if has_backward and not places:
        raise NotApplicable("no input has a gradient")

    def call() -> None:
        if has_backward:
            leaves = leaves_of(inputs, places)
            results = [y for y in function_of(operator, inputs, places)(*leaves) if y.requires_grad]
            torch.autograd.grad(results, leaves, [torch.ones_like(y) for y in results], allow_unused=True)
        else:
            operator.run(inputs)

    for _ in range(3):  # loads kernels and memory, which may wait for the GPU
        call()
    torch.cuda.synchronize()
    waits = 0
    for _ in range(3):  # three times, as a busy host may be late once
        torch.cuda._sleep(4 * CYCLES)
        slept = torch.cuda.Event()
        slept.record()
        call()
        waits += slept.query()
        torch.cuda.synchronize()
    require(waits < 3, "the host waits for the GPU in each call")


def _size_depends_on_data(operator: Operator, device: str) -> bool:
    tags = [tag for function, *_ in operator.calls(operator.fresh(device)) for tag in function.tags]
    shapes = [[x.shape for x in operator.run(operator.fresh(device, seed))] for seed in range(4)]
    return torch.Tag.dynamic_output_shape in tags or any(x != shapes[0] for x in shapes)


@check("take no item(), no copy to the host, no cudaDeviceSynchronize()", "8_timing", on=("cuda",))
def synchronization(operator: Operator, device: str) -> Trials:
    """Does a call return without waiting for the GPU?"""
    if _size_depends_on_data(operator, device):
        raise NotApplicable("the size of a result depends on data, so the host has to wait")
    for has_backward in (False, True):
        yield trial(host_goes_on, has_backward=has_backward)


class _Bytes:
    """Memory of the GPU by its address, for torch.as_tensor."""

    def __init__(self, address: int, count: int):
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3}


def fill_free_memory(value: int, device: str) -> None:
    """Fill each free block of up to 1 MiB that torch holds, and some new ones, and free them again."""
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    blocks: list[Tensor] = []
    while torch.cuda.memory_reserved() == reserved and len(blocks) < 20_000:
        blocks.append(torch.full((512,), value, dtype=torch.uint8, device=device))
    blocks += [torch.full((512,), value, dtype=torch.uint8, device=device) for _ in range(2 * 4096)]
    torch.cuda.synchronize()


def bytes_after_results_stay(operator: Operator, device: str, group: str | None, size: int) -> None:
    """torch rounds each block of memory up to 512 bytes. The rest of a result's block holds a filler, which stays."""
    inputs = resized_or_not(operator, device, group, size)
    operator.run(copies(inputs))
    some = copies(inputs)
    fill_free_memory(0xA5, device)
    reserved = torch.cuda.memory_reserved()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=10_000)
    results = operator.run(some)
    torch.cuda.synchronize()
    index = torch.cuda.current_device()
    events = [e for e in torch.cuda.memory._snapshot()["device_traces"][index] if e["action"] == "alloc"]
    torch.cuda.memory._record_memory_history(None)
    judged = 0
    for k, x in enumerate(results):
        used = x.untyped_storage().nbytes()
        start, rest = x.untyped_storage().data_ptr() + used, -used % 512
        is_filled = used < 2**19 and torch.cuda.memory_reserved() == reserved
        is_filled = is_filled and start - used in [e["addr"] for e in events]  # no input, which is older
        holds_others = any(e["addr"] < start + rest and start < e["addr"] + e["size"] for e in events)
        if rest and is_filled and not holds_others:  # the operator's own scratch memory may have lain there
            judged += 1
            count = int((torch.as_tensor(_Bytes(start, rest), device=device) != 0xA5).sum())
            require(not count, f"{count} bytes after the end of result {k} ({used} bytes) are written")
    if not judged:
        raise NotApplicable("no result lies in memory whose contents are known")


@check(
    "stop at the last element: guard the incomplete block or vector",
    "9_kernels",
    because_of=("values", "neighbours"),
    on=("cuda",),
)
def after_results_on_gpu(operator: Operator, device: str) -> Trials:
    """Is no memory written after the last element of a result?"""
    inputs = operator.fresh(device)
    yield trial(bytes_after_results_stay, group=None, size=0)
    for group in groups_of(operator, inputs):
        for size in (1, 3, 7, 33, 65):
            yield trial(bytes_after_results_stay, group=group, size=size)


def freed_memory_does_not_matter(operator: Operator, device: str, group: str | None, size: int) -> None:
    """torch gives out memory that was freed, with its old contents: NaNs, then zeros, then large numbers."""
    inputs = resized_or_not(operator, device, group, size)
    results = []
    for value in (0.0, float("nan"), 1e30):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        small = [torch.full((2**18,), value, device=device) for _ in range(8)]
        large = torch.full((2**23,), value, device=device)
        del small, large
        results.append([x.clone() for x in operator.run(copies(inputs))])
    for others in results[1:]:
        compare(operator, others, results[0], what="with other numbers in freed memory; result")


@check(
    "write each element of the result, and set accumulators to zero",
    "9_kernels",
    because_of=("unwritten", "repeated"),
    on=("cuda",),
)
def uninitialized_on_gpu(operator: Operator, device: str) -> Trials:
    """Does the result depend on what memory held before?"""
    yield trial(freed_memory_does_not_matter, group=None, size=0)
    inputs = operator.fresh(device)
    for group in groups_of(operator, inputs):
        for size in (1, 3, 33, 257):
            yield trial(freed_memory_does_not_matter, group=group, size=size)


def work_is_in_the_call(operator: Operator, device: str) -> None:
    """A timer's events around many calls: each call must do its work again, with new contents each time, or a cache or
    work that is put off deceives the timer."""
    inputs = _larger(operator, device)
    places = [place for place in floating(inputs) if place not in operator.written()]
    kept = []
    for k in range(8):
        for place in places:
            get(inputs, place).mul_(0.9)
        some = copies(inputs) if operator.written() else inputs
        kept.append(([x.clone() for x in operator.run(some)], copies(inputs), k))
    torch.cuda.synchronize()
    for found, values, k in kept:
        compare(operator, found, operator.run(values), what=f"call {k} of a series without a pause; result")


@check(
    "compute in each call, on the stream of the call",
    "8_timing",
    because_of=("stale", "kept_results", "current_stream"),
    on=("cuda",),
)
def series(operator: Operator, device: str) -> Trials:
    """Does each call in a series without a pause do its own work?"""
    yield trial(work_is_in_the_call)
