"""How not to time a launch, and how to: synchronize before, after, both, or not at all. A clock that does not wait for
the GPU reads only the launch; one that waits only afterwards reads earlier calls, too."""

import itertools
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch

from . import clock
from .calls import buffers, figure, fits, power

CASES = {  # (before, after): its name, and what the clock then reads
    (True, True): ("before and after", "launch + kernel + synchronization"),
    (True, False): ("before only", "only the launch"),
    (False, True): ("after only", "launch + kernel + synchronization, and whatever is still queued"),
    (False, False): ("neither", "only the launch"),
}


def samples(call: Callable[[], object], device: torch.device, before: bool, after: bool) -> list[float]:
    """The times of ten calls, in microseconds, after ten calls without a wait."""
    name = f"synchronize {CASES[before, after][0]}"
    clock.synchronize(device)
    with clock.phase(f"{name}: warm-up"):
        for _ in range(10):
            call()
    with clock.phase(f"{name}: timed"):
        times = [clock.span(call, device, before, after) for _ in range(10)]
    clock.synchronize(device)
    return times


def run(calls: dict[str, Callable], dtype: torch.dtype, device: torch.device) -> Iterator[dict]:
    """Measure the four cases, for torch and for add2, print a table for each, and yield its rows."""
    on_gpu = device.type == "cuda"
    sizes = (2**20, 2**26) if on_gpu else (2**20,)  # the articles'; one whose kernel takes much longer than its launch
    for n, name in itertools.product(sizes, ("torch.add", "torch_launch_add2")):
        if not fits(n, dtype, device):
            continue
        call = partial(calls[name], *buffers(n, dtype, device)[0], n)
        samples(call, device, True, True)  # the very first calls load the kernel and fill the allocator's cache
        row = {"call": name, "dtype": str(dtype).removeprefix("torch."), "n": n}
        print(f"\nThe four synchronizations: {name}, {power(n)} elements of {row['dtype']}, microseconds")
        print(f"{'synchronize':<18}{'first':>10}{'median':>10}  what the clock reads")
        for (before, after), (case, reads) in CASES.items():
            times = samples(call, device, before, after)
            first, median = times[0], statistics.median(times)
            reads = reads if on_gpu else "the whole call, which has ended when it returns"
            print(f"{case:<18}{figure(first):>10}{figure(median):>10}  {reads}")
            yield row | {"before": before, "after": after, "first_us": first, "median_us": median, "samples_us": times}
        if on_gpu:
            kernel = clock.gpu([call] * (2**26 // n)).median_us  # on the same tensors as in the study
            print(f"Only the kernel, by the GPU's clock: {figure(kernel)}")
