"""`time.py --kernels`: each kernel of the lesson by itself. nvcc compiles them once more, so any build can be timed."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from .. import toolchain
from ..build import ROOT
from .calls import DTYPES

KERNELS = ("plain", "vector", "unaligned")  # enum Add2Kernel


def kernels(device: torch.device) -> dict[str, Callable]:
    """Each kernel by its C function: no torch, no checks, no dispatcher. None on a CPU, which has only one kernel."""
    if device.type == "cpu":
        return {}
    nvcc, dtypes = toolchain.find_nvcc(), list(DTYPES.values())
    if nvcc is None:
        raise toolchain.Failure(f"--kernels compiles the kernels once more: {toolchain.cuda_cure()}")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/kernels.so"
        command: list[str | Path] = [nvcc, "-O3", "-std=c++14", "-arch=native", "-shared", "-Xcompiler=-fPIC"]
        command += [f"-I{ROOT}/include", f"-L{toolchain.cuda_root(nvcc)}/lib"]
        command += ["-o", library, ROOT / "kernel" / "add2_kernel.cu"]
        if subprocess.run(command, env=toolchain.environment()).returncode:
            raise toolchain.Failure("--kernels: nvcc failed, as it says above. Cure: docs/troubleshooting.md")
        launcher = ctypes.CDLL(library).launch_add2_cuda_kernel  # the builds hide it
    # kernel, c, a, b, n, dtype, stream -> an error message or NULL
    launcher.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    launcher.restype = ctypes.c_char_p

    def launch(kernel: int, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, n: int) -> None:
        stream = torch.cuda.current_stream(device).cuda_stream
        error = launcher(kernel, c.data_ptr(), a.data_ptr(), b.data_ptr(), n, dtypes.index(c.dtype), stream)
        if error:
            raise RuntimeError(f"{KERNELS[kernel]} kernel: {error.decode()}")

    return {f"{name} kernel": partial(launch, kernel) for kernel, name in enumerate(KERNELS)}
