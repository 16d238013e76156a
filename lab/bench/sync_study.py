"""How not to time a launch, and how to: synchronize before, after, both, or not at all. A clock that does not wait for
the GPU reads only the launch; one that waits only afterwards reads earlier calls, too."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch

from . import clock
from .calls import buffers, figure, power

CASES = {  # (before, after): its name, and what the clock then reads
    (True, True): ("before and after", "launch + kernel + synchronization"),
    (True, False): ("before only", "only the launch"),
    (False, True): ("after only", "launch + kernel + synchronization, and whatever is still queued"),
    (False, False): ("neither", "only the launch"),
}


def samples(call: Callable[[], object], device: torch.device, before: bool, after: bool) -> list[float]:
    """The times of ten calls, in microseconds, after ten calls without a wait."""
    clock.synchronize(device)
    for _ in range(10):
        call()
    return [clock.span(call, device, before, after) for _ in range(10)]


def measure(calls: dict[str, Callable], dtype: torch.dtype, device: torch.device) -> list[dict]:
    """Rows of the four cases, for torch and for add2. calls: those of calls.calls()."""
    rows = []
    # 2^20 is the articles' size; at 2^26 a kernel takes much longer than its launch.
    sizes = (2**20, 2**26) if device.type == "cuda" else (2**20,)
    for n, name in itertools.product(sizes, ("torch.add", "torch_launch_add2")):
        tensors = buffers(n, dtype, device)[0]
        call = partial(calls[name], *tensors, n)
        samples(call, device, True, True)  # the very first calls load the kernel and fill the allocator's cache
        for before, after in CASES:
            times = samples(call, device, before, after)
            row = {"call": name, "dtype": str(dtype).removeprefix("torch."), "n": n, "before": before, "after": after}
            rows.append(row | {"first_us": times[0], "median_us": statistics.median(times), "samples_us": times})
    return rows


def table(rows: Sequence[dict], device: torch.device) -> str:
    """A block of four lines for each call and size."""
    lines = []
    for row in rows:
        case, reads = CASES[row["before"], row["after"]]
        if row["before"] and row["after"]:
            lines.append(f"\nThe four synchronizations: {row['call']}, {power(row['n'])} elements, microseconds")
            lines.append(f"{'synchronize':<18}{'first':>10}{'median':>10}  what the clock reads")
        if device.type == "cpu":
            reads = "the whole call, which has ended when it returns"
        lines.append(f"{case:<18}{figure(row['first_us']):>10}{figure(row['median_us']):>10}  {reads}")
    return "\n".join(lines)
