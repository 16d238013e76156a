"""`time.py --kernels`: each kernel of the lesson by itself, without torch's dispatcher.

On a GPU nvcc compiles them once more, so any build can be timed. On a CPU they run in the emulator: values and memory
traffic, no times.
"""

import ctypes
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from .. import emulator
from ..build import ROOT
from ..kernels import InEmulator, compile_source, expect_no_faults, traffic
from .calls import DTYPES

SOURCE = ROOT / "kernel" / "add2_kernel.cu"
KERNELS = ("plain", "vector", "unaligned")  # enum Add2Kernel


def kernels(device: torch.device) -> dict[str, Callable]:
    """Each kernel by its C function: no torch, no checks, no dispatcher. None on a CPU: see in_emulator()."""
    if device.type == "cpu":
        return {}
    dtypes = list(DTYPES.values())
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernels.so")
        compile_source(SOURCE, library, "-O3", "-std=c++14", f"-I{ROOT}/include")
        launcher = ctypes.CDLL(str(library)).launch_add2_cuda_kernel  # the builds hide it
    # kernel, c, a, b, n, dtype, stream -> an error message or NULL
    launcher.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    launcher.restype = ctypes.c_char_p

    def launch(kernel: int, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, n: int) -> None:
        stream = torch.cuda.current_stream(device).cuda_stream
        error = launcher(kernel, c.data_ptr(), a.data_ptr(), b.data_ptr(), n, dtypes.index(c.dtype), stream)
        if error:
            raise RuntimeError(f"{KERNELS[kernel]} kernel: {error.decode()}")

    return {f"{name} kernel": partial(launch, kernel) for kernel, name in enumerate(KERNELS)}


def in_emulator() -> InEmulator:
    """The kernels, compiled for the emulator."""
    return InEmulator(emulator.load(SOURCE, [f"-I{ROOT}/include"]))


def add(launchers: InEmulator, kernel: str, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, n: int) -> None:
    """c[0:n] = a[0:n] + b[0:n] by one kernel, in the emulator. launchers.report has what it found."""
    dtype = list(DTYPES.values()).index(c.dtype)
    launchers.launch("launch_add2_cuda_kernel", KERNELS.index(kernel), c, a, b, n, dtype)


def count(dtypes: list[str], n: int = 1 << 16) -> str:
    """Check each kernel in the emulator, and return tables of its memory traffic for n elements of each dtype."""
    launchers, tables = in_emulator(), []
    for dtype in dtypes:
        rows = {}
        for kernel, offset in [*((name, 0) for name in KERNELS), ("unaligned", 1)]:
            a, b, c = (torch.randn(n + offset).to(DTYPES[dtype])[offset:] for _ in range(3))
            add(launchers, kernel, c, a, b, n)
            name = f"{kernel} kernel" + ", from the second element on" * offset
            expect_no_faults(launchers, name)
            if not torch.equal(c, a + b):
                raise RuntimeError(f"the {name} is wrong for {n} elements of {dtype}")
            rows[name] = launchers.counts()
        tables.append(f"in the emulator, {n} elements of {dtype}: memory traffic, no times\n{traffic(rows)}")
    return "\n".join(tables)
