"""The experiment that shows how not to time a launch: synchronize before, after, both, or not at all.

Ten warm-up calls, ten timed calls, the time of each kept. A launch is asynchronous, so a clock that does not wait for
the GPU reads the launch alone; one that waits only afterwards may wait for earlier calls, too.
"""

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import clock

CALLS = ("torch.add", "torch_launch_add2")
WARM_UP = TIMED = 10

# (before, after): its name, and what the clock then reads.
CASES = {
    (True, True): ("before and after", "launch + kernel + synchronization"),
    (True, False): ("before only", "the launch alone"),
    (False, True): ("after only", "launch + kernel + synchronization, and at first what is queued"),
    (False, False): ("neither", "the launch alone"),
}


@dataclass
class Study:
    """One line of the table. before, after: whether the clock waited for the GPU then. Times in microseconds."""

    call: str
    dtype: str
    n: int
    before: bool
    after: bool
    first_us: float
    median_us: float
    samples_us: list[float]


def sizes(device: torch.device) -> tuple[int, ...]:
    """Numbers of elements: the articles' size; on a GPU also one whose kernel takes much longer than its launch."""
    return (2**20, 2**26) if device.type == "cuda" else (2**20,)


def samples(call: Callable[[], object], device: torch.device, before: bool, after: bool) -> list[float]:
    """The times of TIMED calls, in microseconds, after WARM_UP calls that nobody waits for."""
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


def run(calls: dict[str, Callable], dtype: torch.dtype, n: int, device: torch.device) -> list[Study]:
    """Measure and print the four cases, for torch and for add2, on tensors of n elements."""
    a, b = torch.randn(2, n, device=device, dtype=dtype)
    c = torch.empty_like(a)
    studies = []
    for name in CALLS:
        call = functools.partial(calls[name], c, a, b, n)
        samples(call, device, True, True)  # the very first calls load the kernel and fill the allocator's cache
        for before, after in CASES:
            times = samples(call, device, before, after)
            dtype_name = str(dtype).removeprefix("torch.")
            studies.append(Study(name, dtype_name, n, before, after, times[0], statistics.median(times), times))
    print(table(studies, device))
    # The kernel alone, on the same tensors as in the study.
    kernel_us = clock.gpu([call] * max(1, 2**26 // n)).median_us if device.type == "cuda" else None
    print(explain(studies, kernel_us))
    return studies


def table(rows: list[Study], device: torch.device) -> str:
    """The rows of one size, a block for each call."""
    text = []
    for name in CALLS:
        mine = [row for row in rows if row.call == name]
        text.append(f"\nThe four synchronizations: {name}, {mine[0].n} elements of {mine[0].dtype}, microseconds")
        text.append(f"{'synchronize':<18}{'first':>10}{'median':>10}  what the clock reads")
        for row in mine:
            case, what = CASES[row.before, row.after]
            what = what if device.type == "cuda" else "the whole call"
            text.append(f"{case:<18}{row.first_us:>10.1f}{row.median_us:>10.1f}  {what}")
    return "\n".join(text)


def explain(rows: list[Study], kernel_us: float | None) -> str:
    """What the table of one size shows. kernel_us: the kernel alone by the GPU's clock; None on a CPU."""
    both, before, after, neither = (row for row in rows if row.call == "torch_launch_add2")
    if kernel_us is None:
        return "\nA CPU has finished when a call returns: there is nothing to wait for, and the four agree."
    known = (
        f"\nThe kernel takes {kernel_us:.1f} us by the GPU's clock, its launch {before.median_us:.1f} us by the host's."
    )
    if kernel_us < before.median_us:
        return known + (
            "\nThe GPU is done before Python comes with the next call: no queue builds up, and the first 'after only'"
            "\ncall finds nothing to wait for."
        )
    return known + (
        f"\n'before only' ({before.median_us:.1f} us) and 'neither' ({neither.median_us:.1f} us) miss the kernel. The "
        f"warm-up calls are still queued\nwhen the first 'after only' call comes: it waits for them too, "
        f"{after.first_us:.0f} us instead of {both.median_us:.0f}."
    )
