"""The experiment that shows how not to time a launch: synchronize before, after, both, or not at all.

Ten warm-up calls, ten timed calls, the time of each kept. A launch is asynchronous, so a clock that does not wait for
the GPU reads only the launch; one that waits only afterwards may also wait for earlier calls.
"""

import functools
import statistics
import time
from collections.abc import Callable

import torch

from . import clock
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


def sizes(device: torch.device) -> tuple[int, ...]:
    """Numbers of elements: the articles' size; on a GPU also one whose kernel takes much longer than its launch."""
    return (2**20, 2**26) if device.type == "cuda" else (2**20,)


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


def run(calls: dict[str, Callable], dtype: torch.dtype, n: int, device: torch.device) -> tuple[list[dict], str]:
    """Measure the four cases, for torch and for add2, on tensors of n elements. Returns the rows, and a text."""
    a, b = torch.randn(2, n, device=device, dtype=dtype)
    c = torch.empty_like(a)
    rows = []
    for name in CALLS:
        call = functools.partial(calls[name], c, a, b, n)
        samples(call, device, True, True)  # the very first calls load the kernel and fill the allocator's cache
        for before, after in CASES:
            times = samples(call, device, before, after)
            row = {"call": name, "dtype": str(dtype).removeprefix("torch."), "n": n, "before": before, "after": after}
            row |= {"first_us": times[0], "median_us": statistics.median(times), "samples_us": times}
            rows.append(row)
    # Only the kernel, on the same tensors as in the study.
    kernel_us = clock.gpu([call] * max(1, 2**26 // n)).median_us if device.type == "cuda" else None
    return rows, table(rows, kernel_us) + "\n\n" + explain(rows, kernel_us)


def table(rows: list[dict], kernel_us: float | None) -> str:
    text = []
    for row in rows:
        case, reads = CASES[row["before"], row["after"]]
        if case == "before and after":
            title = f"{row['call']}, {power(row['n'])} elements of {row['dtype']}, microseconds"
            text.append(f"\nThe four synchronizations: {title}")
            text.append(f"{'synchronize':<18}{'first':>10}{'median':>10}  what the clock reads")
        reads = "the whole call" if kernel_us is None else reads
        text.append(f"{case:<18}{figure(row['first_us']):>10}{figure(row['median_us']):>10}  {reads}")
    return "\n".join(text)


def explain(rows: list[dict], kernel_us: float | None) -> str:
    """The sentences that follow from the figures of this run. kernel_us: by the GPU's clock; None on a CPU."""
    mine = [row for row in rows if row["call"] == "torch_launch_add2"]
    both, before, after, neither = (figure(row["median_us"]) for row in mine)
    if kernel_us is None:
        read = ", ".join((both, before, after, neither))
        return f"A CPU has finished when a call returns, so each clock reads the whole call: {read} us."
    launch, first, usual = mine[1]["median_us"], mine[2]["first_us"], mine[2]["median_us"]
    text = f"The kernel takes {figure(kernel_us)} us by the GPU's clock, its launch {before} us by the host's."
    if max(launch, mine[3]["median_us"]) < mine[0]["median_us"]:
        text += f"\n'before only' and 'neither' ({neither}) do not wait for the kernel, 'before and after' does: {both}"
    text += f"\nThe first 'after only' call took {figure(first)} us, the median one {after}. "
    if kernel_us > launch:
        if first > 1.5 * usual:
            return text + "It also waited for warm-up calls:\nthey queue up where a kernel outlasts its launch."
        return text + "A kernel outlasts its launch, but too few\nwarm-up calls were queued to show."
    if first > 1.5 * usual:
        return text + "No queue explains that: the GPU finishes\na kernel before the next launch."
    return text + "It found nothing to wait for: the GPU\nfinishes a kernel before the next launch."
