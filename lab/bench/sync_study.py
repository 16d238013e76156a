"""The experiment that shows how not to time a launch: synchronize before, after, both, or not at all.

Ten warm-up calls, ten timed calls, the time of each kept. A launch is asynchronous, so a clock that does not wait for
the GPU reads only the launch; one that waits only afterwards may also wait for earlier calls.
"""

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from . import clock
from .calls import fits
from .tables import figure, power

CALLS = ("torch.add", "torch_launch_add2")
WARM_UP = TIMED = 10

# (before, after): its name, and what the clock then reads.
CASES = {
    (True, True): ("before and after", "launch + kernel + synchronization"),
    (True, False): ("before only", "only the launch"),
    (False, True): ("after only", "launch + kernel + synchronization, and whatever is still queued"),
    (False, False): ("neither", "only the launch"),
}


def samples(call: Callable[[], object], device: torch.device, before: bool, after: bool) -> list[float]:
    """The times of TIMED calls, in microseconds, after WARM_UP calls without a wait."""
    clock.synchronize(device)
    with clock.phase(f"synchronize {CASES[before, after][0]}: warm-up"):
        for _ in range(WARM_UP):
            call()
    times = []
    with clock.phase(f"synchronize {CASES[before, after][0]}: timed"):
        for _ in range(TIMED):
            if before:
                clock.synchronize(device)
            start = time.perf_counter()
            call()
            if after:
                clock.synchronize(device)
            times.append((time.perf_counter() - start) * 1e6)
    clock.synchronize(device)
    return times


def run(calls: dict[str, Callable], dtype: torch.dtype, device: torch.device) -> Iterator[dict]:
    """Measure the four cases, for torch and for add2, print a table for each, and yield its rows.

    The articles' size; on a GPU also one whose kernel takes much longer than its launch.
    """
    sizes = (2**20, 2**26) if device.type == "cuda" else (2**20,)
    for n, name in itertools.product((n for n in sizes if fits(n, dtype, device)), CALLS):
        call = _call(calls[name], dtype, n, device)
        samples(call, device, True, True)  # the very first calls load the kernel and fill the allocator's cache
        row = {"call": name, "dtype": str(dtype).removeprefix("torch."), "n": n}
        print(f"\nThe four synchronizations: {name}, {power(n)} elements of {row['dtype']}, microseconds")
        print(f"{'synchronize':<18}{'first':>10}{'median':>10}  what the clock reads")
        for (before, after), (case, reads) in CASES.items():
            times = samples(call, device, before, after)
            first, median = times[0], statistics.median(times)
            reads = reads if device.type == "cuda" else "the whole call, which has ended when it returns"
            print(f"{case:<18}{figure(first):>10}{figure(median):>10}  {reads}")
            yield row | {"before": before, "after": after, "first_us": first, "median_us": median, "samples_us": times}
        if device.type == "cuda":
            kernel = clock.gpu([call] * (2**26 // n)).median_us  # on the same tensors as in the study
            print(f"Only the kernel, by the GPU's clock: {figure(kernel)}")


def trace(calls: dict[str, Callable], dtype: torch.dtype, device: torch.device, path: Path) -> None:
    """Write what torch.profiler sees of the four cases, for chrome://tracing and ui.perfetto.dev."""
    call = _call(calls["torch_launch_add2"], dtype, 2**24, device)  # launch and kernel are both long enough to see
    with torch.profiler.profile() as profiler:
        for before, after in CASES:
            samples(call, device, before, after)
    profiler.export_chrome_trace(str(path))


def _call(call: Callable, dtype: torch.dtype, n: int, device: torch.device) -> Callable[[], object]:
    a, b = torch.randn(2, n, device=device, dtype=dtype)
    return functools.partial(call, torch.empty_like(a), a, b, n)
