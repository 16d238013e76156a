"""`time.py --kernels`: each kernel of the lesson by itself."""

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from .calls import DTYPES

KERNELS = ("plain", "vector", "unaligned")  # enum Add2Kernel


def kernels(library: Path, device: torch.device) -> dict[str, Callable]:
    """Each kernel by its C function: no torch, no checks, no dispatcher. None on a CPU, which has only one kernel."""
    if device.type == "cpu":
        return {}
    # Of kernel/add2_kernel.cu: kernel, c, a, b, n, dtype, stream -> an error message or NULL.
    launcher = ctypes.CDLL(str(library)).launch_add2_cuda_kernel
    launcher.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    launcher.restype = ctypes.c_char_p
    dtypes = list(DTYPES.values())

    def launch(kernel: int, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, n: int) -> None:
        stream = torch.cuda.current_stream(device).cuda_stream
        error = launcher(kernel, c.data_ptr(), a.data_ptr(), b.data_ptr(), n, dtypes.index(c.dtype), stream)
        if error:
            raise RuntimeError(f"{KERNELS[kernel]} kernel: {error.decode()}")

    return {f"{name} kernel": partial(launch, kernel) for kernel, name in enumerate(KERNELS)}
