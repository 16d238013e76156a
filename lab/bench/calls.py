"""The calls that time.py compares, the memory they work on, their times, and the table of these. A row is a dict, as
measure() returns it and as it stands in the JSON file."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from . import clock

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16")}  # as enum Add2Dtype
Tensors = tuple[torch.Tensor, ...]  # c, a, b
CLOCKS = {  # clock: its column, and what it reads
    "gpu": ("GPU us", "kernel time without the launch, with a cold L2 cache"),
    "host": ("host us", "time of a call"),
    "events": ("events us", "time between two events, with a cold L2 cache"),
    "gpu warm": ("warm GPU us", "kernel time without the launch, with a warm L2 cache"),
}


class WrongResult(Exception):
    """A call's result differs from torch's."""


def calls() -> dict[str, Callable]:
    """The functions to compare, each of (c, a, b, n); those that return a tensor leave c as it is."""
    import add2

    return {
        "torch.add": lambda c, a, b, n: torch.add(a, b),
        "torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c),
        "add2": lambda c, a, b, n: add2.add2(a, b),
        "torch_launch_add2": lambda c, a, b, n: add2.torch_launch_add2(c, a, b, n),
    }


def buffers(n: int, dtype: torch.dtype, device: torch.device) -> list[Tensors]:
    """Sets of tensors c, a, b of n random elements; on a GPU as many sets as make four times its L2 cache, up to 512.
    Each tensor starts, as torch's do, at a multiple of 256 bytes."""
    wanted = 4 * clock.cache_size(device) if device.type == "cuda" else 1
    sets = min(512, math.ceil(wanted / (3 * n * dtype.itemsize)))
    generator = torch.Generator(device).manual_seed(0)
    step = math.ceil(n * dtype.itemsize / 256) * 256 // dtype.itemsize
    a, b = (torch.randn(sets, step, generator=generator, device=device, dtype=dtype) for _ in range(2))
    c = torch.empty_like(a)
    return [tuple(x[:n] for x in tensors) for tensors in zip(c, a, b, strict=True)]


def check(calls: dict[str, Callable], tensors: Tensors) -> None:
    """Raise WrongResult if a call's result differs from torch's in any bit."""
    c, a, b = tensors
    expected = a + b
    for name, call in calls.items():
        c.fill_(math.nan)  # elements that a call leaves out stay NaN
        result = call(c, a, b, c.numel())
        if not torch.equal(c if result is None else result, expected):
            raise WrongResult(f"{name}: the result for {power(c.numel())} elements of {c.dtype} differs from torch's")


def measure(compiler: str, calls: dict[str, Callable], sets: list[Tensors], every_clock: bool) -> list[dict]:
    """Check every call and time it: rows for a table. every_clock: otherwise only the GPU's, or on a CPU the host's."""
    check(calls, sets[0])
    c = sets[0][0]
    timings: dict[tuple[str, str], clock.Timing] = {}
    if every_clock or not c.is_cuda:
        once = [partial(call, *sets[0], c.numel()) for call in calls.values()]
        timings |= zip([(name, "host") for name in calls], clock.host(once, c.device), strict=True)
    if c.is_cuda:
        for name, call in calls.items():
            timings |= {(name, key): timing for key, timing in _on_gpu(call, sets, every_clock).items()}
    rows = []
    dtype = str(c.dtype).removeprefix("torch.")
    for (name, key), timing in timings.items():
        # The torch call that does the same work in the same way: with a new tensor for the result, or without.
        counterpart = "torch.add" if name in ("torch.add", "add2") else "torch.add(out)"
        row: dict[str, Any] = {"compiler": compiler, "call": name, "dtype": dtype, "n": c.numel()}
        row |= {"bytes": 3 * c.nbytes, "clock": key}
        row |= {column: value for column, value in vars(timing).items() if column != "is_noisy"}
        row["gb_per_s"] = 3 * c.nbytes / timing.median_us / 1e3
        row["ratio_to_torch"] = timing.median_us / timings[counterpart, key].median_us
        if timing.is_noisy:
            row["noisy"] = True
        rows.append(row)
    return rows


def _on_gpu(call: Callable, sets: list[Tensors], every_clock: bool) -> dict[str, clock.Timing]:
    c = sets[0][0]
    size, cache, flush = 3 * c.nbytes, clock.cache_size(c.device), clock.flush(c.device)
    on_each = [partial(call, *tensors, c.numel()) for tensors in sets]
    # Enough calls in a graph to outlast its own launch, about 500 us at 3 TB/s.
    repeats = max(len(sets), min(512, math.ceil(500 / max(1, size / 3e6))))
    rotating = list(itertools.islice(itertools.cycle(on_each), repeats))
    found = {"events": clock.events(on_each, flush)} if every_clock else {}
    found["gpu"] = clock.gpu(rotating, flush=None if len(sets) * size >= 4 * cache else flush)
    if every_clock and size <= cache:
        found["gpu warm"] = clock.gpu(*([one] * repeats for one in on_each[:4]))
    return found


def figure(value: float) -> str:
    """Four significant digits, as in the JSON file, and no exponent."""
    value = float(f"{value:.4g}")
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}" if value else "0"


def power(n: int) -> str:
    """2^20; 1000 and 2^20+1 for what lies between."""
    exponent = n.bit_length() - 1
    rest = n - 2**exponent
    if n < 16 or rest >= 16:
        return str(n)
    return f"2^{exponent}+{rest}" if rest else f"2^{exponent}"


def table(rows: Sequence[dict], peak: float | None = None) -> str:
    """A block for each dtype, size and clock; a line for each call (and build, if several). peak: the memory's GB/s."""
    has_builds = len({row["compiler"] for row in rows}) > 1
    blocks: dict[tuple, list[dict]] = {}
    for row in rows:
        blocks.setdefault((row["dtype"], row["n"], row["clock"]), []).append(row)
    lines = []
    for (dtype, n, key), block in blocks.items():
        size = block[0]["bytes"] / 1e6
        lines.append(f"\n{power(n)} elements of {dtype}; all results as torch's; {size:.4g} MB read and written")
        percent = f"{'% peak':>8}" if peak else ""
        lines.append(f"{'call':<26}{CLOCKS[key][0]:>13}{'GB/s':>9}{percent}{'ratio':>8}")
        for row in block:
            label = f"{row['call']} ({row['compiler']})" if has_builds else row["call"]
            us = figure(row["median_us"]) + ("~" if row.get("noisy") else " ")
            percent = f"{row['gb_per_s'] / peak:>8.1%}" if peak else ""
            lines.append(f"{label:<26}{us:>13}{figure(row['gb_per_s']):>9}{percent}{row['ratio_to_torch']:>8.3f}")
    return "\n".join(lines)


def legend(rows: Sequence[dict]) -> str:
    lines = [""]
    for column, reads in dict.fromkeys(CLOCKS[row["clock"]] for row in rows):
        lines.append(f"{column}: median {reads}; GB/s, % peak and ratio belong to it (docs/8_timing.md)")
    lines.append("ratio: time over that of torch.add; of torch.add(out) for calls that write into c. Below 1 is faster")
    if any(row.get("noisy") for row in rows):
        lines.append("~: noisy, the 5th to 95th percentile spread exceeds 25% of the median, or the machine was busy")
    return "\n".join(lines)
