"""Clocks, in microseconds. A launch is asynchronous: the call returns before the kernel has run. Each clock reads:

host        launch + kernel + synchronization: synchronized before and after (sync_study.py shows why)
events      the kernel, and the cost of two events around it: stamps that the GPU writes as it passes them
gpu         the kernel without its launch: many calls captured in a CUDA graph, which is replayed between two events
gpu warm    the same on one set of tensors, which stays in the GPU's L2 cache; `events` and `gpu` are cold
steady      as gpu, for calls under which the GPU's clock falls: each runs for a while before it is timed
"""

import itertools
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

Call = Callable[[], object]

BUDGET_S = 0.06  # for each call: a shared machine is slow for longer than a few samples take
_first_graph: list[torch.cuda.CUDAGraph] = []  # of this process; gpu() says why it is kept


@dataclass
class Timing:
    """Repeated measurements of one call: median, 5th and 95th percentile, number of samples."""

    median_us: float
    low_us: float
    high_us: float
    samples: int
    is_noisy: bool


def percentiles(samples: Sequence[float]) -> tuple[float, float]:
    """The 5th and the 95th, of two samples or more."""
    low, *_, high = statistics.quantiles(samples, n=20, method="inclusive")
    return low, high


def is_noisy(samples: Sequence[float]) -> bool:
    """Whether the spread of the samples exceeds 25% of their median, or fewer than ten samples cannot tell."""
    if len(samples) < 10:
        return True
    low, high = percentiles(samples)
    return high - low > 0.25 * statistics.median(samples)


def repeat(samplers: Sequence[Callable[[], list[float]]], warm_up: int = 1) -> list[Timing]:
    """Take samples in turn, so that all see the same machine, until the time is up; at least ten of each."""
    for sampler in [*samplers] * warm_up:
        sampler()
    found: list[list[float]] = [[] for _ in samplers]
    end = time.perf_counter() + BUDGET_S * len(samplers)
    while len(found[0]) < 10 or time.perf_counter() < end:
        for samples, sampler in zip(found, samplers, strict=True):
            samples += sampler()
    return [Timing(statistics.median(x), *percentiles(x), len(x), is_noisy(x)) for x in found]


def synchronize(device: torch.device) -> None:
    """Wait for everything that is queued on a GPU. On a CPU a call has finished when it returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def span(call: Call, device: torch.device, before: bool = True, after: bool = True) -> float:
    """Time one call, synchronized before, after, both or not at all."""
    if before:
        synchronize(device)
    start = time.perf_counter()
    call()
    if after:
        synchronize(device)
    return (time.perf_counter() - start) * 1e6


def host(calls: Sequence[Call], device: torch.device) -> list[Timing]:
    """Time single calls by the host's clock, synchronized before and after, on the same tensors each time."""

    def sample(call: Call) -> list[float]:
        call()  # not timed: it brings back to the caches what the other calls have driven out
        return [span(call, device)]

    before = interruptions()
    # The warm-up also loads the kernel, fills the allocator's cache and wakes the GPU.
    timings = repeat([partial(sample, call) for call in calls], warm_up=3)
    # On a busy machine most samples can wait for a processor, and all equally long: then the spread does not show it.
    if interruptions() - before > 0.25 * sum(timing.samples for timing in timings):
        timings = [replace(timing, is_noisy=True) for timing in timings]
    return timings


def interruptions() -> int:
    """How often the system has taken a processor from a thread of this process, to give it to another."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def cache_size(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size


def flush(device: torch.device) -> Call:
    """A call that empties the GPU's L2 cache: it writes four times the cache's size, as NVBench and Triton do."""
    return torch.empty(cache_size(device), dtype=torch.float32, device=device).zero_


def _between_events(calls: Iterable[Call], flush: Call | None) -> list[float]:
    """Time each call on the GPU, from the event before it to the event after it, each with a cold cache if flush."""
    event = partial(torch.cuda.Event, enable_timing=True)
    stamped = [(call, event(), event()) for call in calls]
    for call, start, end in stamped:
        if flush:
            flush()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for _, start, end in stamped]


def events(calls: Sequence[Call], flush: Call) -> Timing:
    """Time single calls between two events. The flush also keeps the GPU busy until the host has queued the call."""
    turns = itertools.cycle(calls)
    return repeat([lambda: _between_events(itertools.islice(turns, 10), flush)])[0]


def gpu(*rounds: Sequence[Call], flush: Call | None = None, warm_up: Sequence[Call] = ()) -> Timing:
    """Time calls without their launches: a sample is one replay of a CUDA graph over the number of calls in it.
    For a cold cache the calls should use more memory in turn than the cache holds, or have a flush before each replay.
    Each round has a graph of its own: warm calls depend on where in the cache their one set of tensors lies.
    warm_up: calls to run before a graph is captured (default: its first three)."""
    repeated = [[*calls] * math.ceil(16 / len(calls)) for calls in rounds]  # a replay starts once: let it not count
    if not _first_graph:
        # The first graph of a process differs from all later ones: on an H100 and a H200 its kernels took 0.3 us less
        # (1.3 instead of 1.6 for 2^10 elements). So capture one for nothing, and keep it: none may reuse its state.
        _first_graph.append(capture(repeated[0], warm_up))
        end = time.perf_counter() + 0.3
        while time.perf_counter() < end:  # an idle GPU also needs some time to raise its clock
            _first_graph[0].replay()
            torch.cuda.synchronize()
    graphs = [(capture(calls, warm_up), len(calls)) for calls in repeated]

    def sample() -> list[float]:
        # The first of six replays is left out: the host was still on its way to queue it.
        return [us / calls for graph, calls in graphs for us in _between_events([graph.replay] * 6, flush)[1:]]

    return repeat([sample])[0]


def steady(calls: dict[str, Sequence[Call]], rounds: int, warm_s: float) -> dict[str, list[float]]:
    """Time the calls of each contestant, in turn: for each round its microseconds per call. A graph of its calls is
    replayed for warm_s, in which the GPU's clock settles, and then as often again between two events."""
    graphs = {name: capture(each) for name, each in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for name in [*calls] * rounds:
        end, replays = time.perf_counter() + warm_s, 0
        while time.perf_counter() < end:
            graphs[name].replay()
            torch.cuda.synchronize()
            replays += 1
        [us] = _between_events([partial(_replay, graphs[name], replays)], None)
        found[name].append(us / replays / len(calls[name]))
    return found


def _replay(graph: torch.cuda.CUDAGraph, times: int) -> None:
    for _ in range(times):
        graph.replay()


def capture(calls: Sequence[Call], warm_up: Sequence[Call] = ()) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in warm_up or itertools.islice(itertools.cycle(calls), 3):  # which torch.cuda.graph needs
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph
