"""What time.py compares: the calls, the memory they work on, and their measurement."""

import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from . import clock

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

ENUM_ADD2_KERNEL = ("plain", "vector", "small", "medium", "unaligned")  # of include/add2.h
KERNELS = {"cuda": ENUM_ADD2_KERNEL, "cpu": ()}  # on a CPU there is but one

# A call's counterpart in torch: the same work in the same way, with or without a new tensor for the result.
COUNTERPART = {
    "torch.add": "torch.add",
    "torch.add(out)": "torch.add(out)",
    "add2": "torch.add",
    "torch_launch_add2": "torch.add(out)",
    "pybind11": "torch.add(out)",
    **{f"{name} kernel": "torch.add(out)" for name in ENUM_ADD2_KERNEL},
    "copy": "torch.add(out)",
}

# From the 5th to the 95th percentile more than this share of the median: a figure to doubt.
WIDE = 0.25

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass
class Result:
    """One line of the table, as it stands in the JSON file. Bytes: what is read and written, 2 + 1 tensors; copy 1 + 1.

    doubt: why the figure is not to be trusted, or empty.
    """

    compiler: str
    call: str
    dtype: str
    n: int
    bytes: int
    clock: str
    median_us: float
    low_us: float
    high_us: float
    samples: int
    gb_per_s: float
    ratio_to_torch: float
    doubt: str
    offset: int = 0  # of each tensor's first element


def calls(library: Path, device: torch.device, module: ModuleType | None, kernels: Sequence[str]) -> dict:
    """The functions to compare, each of (c, a, b, n); those that return a tensor leave c alone."""
    import add2

    found: dict[str, Callable] = {
        "torch.add": lambda c, a, b, n: torch.add(a, b),
        "torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c),
        "add2": lambda c, a, b, n: add2.add2(a, b),
        "torch_launch_add2": lambda c, a, b, n: add2.torch_launch_add2(c, a, b, n),
    }
    if module is not None:
        found["pybind11"] = lambda c, a, b, n: module.torch_launch_add2(c, a, b, n)
    for name in kernels:
        found[f"{name} kernel"] = kernel(library, device, name)
    if device.type == "cuda":
        # What the memory can do: one stream in, one out. By a kernel: c.copy_(a) is a cudaMemcpyAsync, and that runs at
        # 2.8 TB/s instead of 4.2 when a graph replays it, from 512 MB on (H200).
        found["copy"] = lambda c, a, b, n: torch.neg(a, out=c)
    return found


def kernels(device: torch.device, every: bool, offset: int) -> tuple[str, ...]:
    """Which kernels to time by themselves: the plain one on a GPU, or every one that can run."""
    if every:  # on a GPU all but two need tensors that start at a multiple of 16 bytes
        return ("plain", "unaligned") if offset and device.type == "cuda" else KERNELS[device.type]
    return ("plain",) if device.type == "cuda" else ()


def kernel(library: Path, device: torch.device, name: str) -> Callable:
    """One kernel's launcher, called as the C function that it is: no torch, no checks, no dispatcher."""
    number = ENUM_ADD2_KERNEL.index(name)
    dtypes = list(DTYPES.values())  # in the order of enum Add2Dtype
    launcher = getattr(ctypes.CDLL(str(library)), f"launch_add2_{device.type}_kernel")
    launcher.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_int]
    launcher.argtypes += [ctypes.c_void_p] * (device.type == "cuda")
    launcher.restype = ctypes.c_char_p

    def launch(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, n: int) -> None:
        stream = [torch.cuda.current_stream(device).cuda_stream] if device.type == "cuda" else []
        error = launcher(number, c.data_ptr(), a.data_ptr(), b.data_ptr(), n, dtypes.index(c.dtype), *stream)
        if error:
            raise RuntimeError(f"{name} kernel: {error.decode()}")

    return launch


def fits(n: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the inputs, the result and what torch returns beside them have room in the device's free memory."""
    needed = 7 * n * dtype.itemsize
    if device.type == "cuda":
        return needed < torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    lines = Path("/proc/meminfo").read_text().splitlines()
    return needed < 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def buffers(n: int, dtype: torch.dtype, device: torch.device, offset: int = 0) -> list[Tensors]:
    """Tensors c, a, b of n random elements; on a GPU so many sets that they are four times its L2 cache, up to 512.

    offset: they are views that leave out so many elements of a tensor that starts, as torch's do, at 256 bytes.
    """
    sets = 1
    if device.type == "cuda":
        sets = max(1, min(512, math.ceil(4 * cache_size(device) / (3 * n * dtype.itemsize))))
    generator = torch.Generator(device).manual_seed(0)
    step = math.ceil((offset + n) * dtype.itemsize / 256) * 256 // dtype.itemsize
    flat = [torch.randn(sets, step, generator=generator, device=device, dtype=dtype) for _ in range(2)]
    flat.insert(0, torch.empty_like(flat[0]))
    return [tuple(x[offset : offset + n] for x in tensors) for tensors in zip(*flat, strict=True)]


def cache_size(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size


def wrong(calls: dict[str, Callable], tensors: Tensors) -> list[str]:
    """The calls whose result is not torch's, to the last bit."""
    c, a, b = tensors
    expected = a + b
    found = []
    for name, call in calls.items():
        if name == "copy":
            continue
        c.fill_(math.nan)  # what a call leaves out stays NaN
        result = call(c, a, b, c.numel())
        if not torch.equal(c if result is None else result, expected):
            found.append(name)
    return found


def measure(compiler: str, calls: dict[str, Callable], sets: list[Tensors], offset: int = 0) -> list[Result]:
    """Time every call on every clock that the device has (see lab/clock.py)."""
    c, a, b = sets[0]
    size = 3 * c.nbytes
    timings: dict[tuple[str, str], clock.Timing] = {}
    flush = clock.flush(c.device) if c.is_cuda else None
    once = {name: functools.partial(call, c, a, b, c.numel()) for name, call in calls.items()}
    for name, timing in zip(once, clock.host(list(once.values()), c.device), strict=True):
        timings[name, "host"] = timing
    for name, call in calls.items() if flush else ():
        with clock.phase(f"{name}, {c.numel()} elements of {c.dtype}"):
            on_each = [functools.partial(call, *tensors, c.numel()) for tensors in sets]
            timings[name, "events"] = clock.events(on_each, flush)
            # Enough calls in a graph to outlast its own launch, about 500 us at 3 TB/s.
            repeats = max(len(sets), min(512, math.ceil(500 / max(1, size / 3e6))))
            rotating = list(itertools.islice(itertools.cycle(on_each), repeats))
            enough = len(sets) * size >= 4 * cache_size(c.device)
            timings[name, "gpu"] = clock.gpu(rotating, flush=None if enough else flush)
            if size <= cache_size(c.device):
                timings[name, "gpu warm"] = clock.gpu(*([one] * repeats for one in on_each[:4]))
    rows = []
    for (name, clock_name), timing in timings.items():
        moved = (2 if name == "copy" else 3) * c.nbytes
        rows.append(
            Result(
                compiler=compiler,
                call=name,
                dtype=str(c.dtype).removeprefix("torch."),
                n=c.numel(),
                bytes=moved,
                clock=clock_name,
                **vars(timing),
                gb_per_s=moved / timing.median_us / 1e3,
                ratio_to_torch=timing.median_us / timings[COUNTERPART[name], clock_name].median_us,
                doubt="wide spread" if timing.high_us - timing.low_us > WIDE * timing.median_us else "",
                offset=offset,
            )
        )
    return rows
