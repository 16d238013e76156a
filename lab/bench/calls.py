"""The calls that time.py compares, the memory they work on, and their measurement."""

import ctypes
import itertools
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

from . import clock

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16")}  # as enum Add2Dtype
ENUM_ADD2_KERNEL = ("plain", "vector", "small", "medium", "unaligned")  # of include/add2.h
WIDE = 0.25  # a figure is noisy if its spread, 5th to 95th percentile, exceeds this share of the median
Tensors = tuple[torch.Tensor, ...]  # c, a, b


def calls(module: ModuleType | None = None) -> dict[str, Callable]:
    """The functions to compare, each of (c, a, b, n); those that return a tensor leave c as it is."""
    import add2

    found: dict[str, Callable] = {
        "torch.add": lambda c, a, b, n: torch.add(a, b),
        "torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c),
        "add2": lambda c, a, b, n: add2.add2(a, b),
        "torch_launch_add2": lambda c, a, b, n: add2.torch_launch_add2(c, a, b, n),
    }
    if module is not None:
        found["pybind11"] = lambda c, a, b, n: module.torch_launch_add2(c, a, b, n)
    return found


def kernels(library: Path, device: torch.device) -> dict[str, Callable]:
    """Each kernel by its C function (no torch, no checks, no dispatcher); torch.neg, to show what the memory can do."""
    # torch.neg reads one tensor and writes one, by a kernel. c.copy_(a) would be a cudaMemcpyAsync, which reaches 2.8
    # instead of 4.2 TB/s when a graph replays it, from 512 MB on (H200).
    found: dict[str, Callable] = {"torch.neg": lambda c, a, b, n: torch.neg(a, out=c)}
    if device.type == "cpu":  # which has only one kernel
        return found
    launcher = ctypes.CDLL(str(library)).launch_add2_cuda_kernel
    launcher.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    launcher.restype = ctypes.c_char_p
    dtypes = list(DTYPES.values())

    def launch(kernel: int, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, n: int) -> None:
        stream = torch.cuda.current_stream(device).cuda_stream
        error = launcher(kernel, c.data_ptr(), a.data_ptr(), b.data_ptr(), n, dtypes.index(c.dtype), stream)
        if error:
            raise RuntimeError(f"{ENUM_ADD2_KERNEL[kernel]} kernel: {error.decode()}")

    return {f"{name} kernel": partial(launch, kernel) for kernel, name in enumerate(ENUM_ADD2_KERNEL)} | found


def fits(n: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the inputs, the result and the tensors that torch returns fit in the device's free memory."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = 1024 * int(re.search(r"MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text())[1])
    return 7 * n * dtype.itemsize < free


def buffers(n: int, dtype: torch.dtype, device: torch.device) -> list[Tensors]:
    """Sets of tensors c, a, b of n random elements; on a GPU as many sets as make four times its L2 cache, up to 512.
    Each tensor starts, as torch's do, at a multiple of 256 bytes."""
    sets = 1
    if device.type == "cuda":
        sets = max(1, min(512, math.ceil(4 * clock.cache_size(device) / (3 * n * dtype.itemsize))))
    generator = torch.Generator(device).manual_seed(0)
    step = math.ceil(n * dtype.itemsize / 256) * 256 // dtype.itemsize
    a, b = (torch.randn(sets, step, generator=generator, device=device, dtype=dtype) for _ in range(2))
    return [tuple(x[:n] for x in tensors) for tensors in zip(torch.empty_like(a), a, b, strict=True)]


def wrong(calls: dict[str, Callable], tensors: Tensors) -> list[str]:
    """The calls whose result differs from torch's in any bit."""
    c, a, b = tensors
    expected = a + b
    found = []
    for name, call in calls.items():
        c.fill_(math.nan)  # elements that a call leaves out stay NaN
        result = call(c, a, b, c.numel())
        if name != "torch.neg" and not torch.equal(c if result is None else result, expected):
            found.append(name)
    return found


def measure(compiler: str, calls: dict[str, Callable], sets: list[Tensors], every_clock: bool) -> list[dict]:
    """Time every call: rows for a table, as in the JSON file. every_clock: else only the GPU's; on a CPU the host's."""
    c = sets[0][0]
    timings: dict[tuple[str, str], clock.Timing] = {}
    if every_clock or not c.is_cuda:
        once = [partial(call, *sets[0], c.numel()) for call in calls.values()]
        timings |= zip(((name, "host") for name in calls), clock.host(once, c.device), strict=True)
    if c.is_cuda:
        flush = clock.flush(c.device)
        for name, call in calls.items():
            with clock.phase(f"{name}, {c.numel()} elements of {c.dtype}"):
                timings |= {(name, key): timing for key, timing in _on_gpu(call, sets, every_clock, flush).items()}
    rows = []
    for (call, key), timing in timings.items():
        moved = (2 if call == "torch.neg" else 3) * c.nbytes  # tensors that are read or written
        # The torch call that does the same work in the same way: with a new tensor for the result, or without.
        counterpart = "torch.add" if call in ("torch.add", "add2") else "torch.add(out)"
        row = {"compiler": compiler, "call": call, "dtype": str(c.dtype).removeprefix("torch."), "n": c.numel()}
        row |= {"bytes": moved, "clock": key, **vars(timing), "gb_per_s": moved / timing.median_us / 1e3}
        row["ratio_to_torch"] = timing.median_us / timings[counterpart, key].median_us
        if timing.high_us - timing.low_us > WIDE * timing.median_us:
            row["noisy"] = True
        rows.append(row)
    return rows


def _on_gpu(call: Callable, sets: list[Tensors], every_clock: bool, flush: clock.Call) -> dict[str, clock.Timing]:
    c = sets[0][0]
    size, cache = 3 * c.nbytes, clock.cache_size(c.device)
    on_each = [partial(call, *tensors, c.numel()) for tensors in sets]
    # Enough calls in a graph to outlast its own launch, about 500 us at 3 TB/s.
    repeats = max(len(sets), min(512, math.ceil(500 / max(1, size / 3e6))))
    rotating = list(itertools.islice(itertools.cycle(on_each), repeats))
    found = {"events": clock.events(on_each, flush)} if every_clock else {}
    found["gpu"] = clock.gpu(rotating, flush=None if len(sets) * size >= 4 * cache else flush)
    if every_clock and size <= cache:
        found["gpu warm"] = clock.gpu(*([one] * repeats for one in on_each[:4]))
    return found
