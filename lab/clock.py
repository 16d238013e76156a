"""Clocks: how long a call takes, on the host and on the GPU. All times are in microseconds.

A launch is asynchronous: the call returns before the kernel has run. So a host clock must synchronize, before (or it
times the queue of earlier calls too) and after (or it times the launch alone). What it then shows is launch + kernel +
synchronization. For the kernel alone the GPU's own clock is needed: events, which the GPU stamps as it passes them.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass
class Timing:
    """What repeated measurements of one call gave: median, 5th and 95th percentile, number of samples."""

    median_us: float
    low_us: float
    high_us: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Timing":
        ordered = sorted(samples)

        def at(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

        return cls(at(0.5), at(0.05), at(0.95), len(ordered))


def synchronize(device: torch.device) -> None:
    """Wait for all that was queued on a GPU. On a CPU a call has finished when it returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def host(call: Call, device: torch.device, budget_s: float = 0.2, warm_up: int = 10) -> Timing:
    """Time single calls by the host's clock, synchronized before and after, for about budget_s seconds."""
    for _ in range(warm_up):  # the first calls also load the kernel, fill the allocator's cache, wake the GPU
        call()
    samples: list[float] = []
    end = time.perf_counter() + budget_s
    while len(samples) < 10 or time.perf_counter() < end:
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        samples.append((time.perf_counter() - start) * 1e6)
    return Timing.of(samples)


def gpu(calls: Sequence[Call], budget_s: float = 0.2) -> Timing:
    """Time calls by the GPU's clock, without their launches: captured once in a CUDA graph, which is then replayed.

    `calls` should do the same on different memory ("rotating buffers"), more than the L2 cache holds; else the cache
    is measured. A sample is one replay, from event to event, over the number of calls in it. Replays are queued
    back to back, so that the GPU never waits for the host between two events.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def replays(count: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 2)]
        for event in events:
            event.record()
            graph.replay()
        torch.cuda.synchronize()
        # The first interval is left out: the host was still on its way to queue it.
        times = [before.elapsed_time(after) for before, after in itertools.pairwise(events[1:])]
        return [milliseconds * 1e3 / len(calls) for milliseconds in times]

    first = replays(3)
    count = max(10, min(1000, math.ceil(budget_s * 1e6 / (min(first) * len(calls)))))
    return Timing.of(replays(count))
