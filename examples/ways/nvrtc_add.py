"""A CUDA kernel as an operator without a compiler installed: NVRTC, which torch brings, compiles the project's kernels.

a and b are contiguous float32 of the same shape and GPU, at multiples of 16 bytes: a real operator would check that.
Needs the package cuda-core.
"""

import functools
from pathlib import Path

import torch
from cuda import pathfinder
from cuda.core import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, Stream, launch

SOURCE = Path(__file__).resolve().parents[2] / "kernel" / "add2_kernel.cuh"  # only device code, so NVRTC takes it
KERNEL = "add2_vector<float>"  # a template has no machine code until it is instantiated
THREADS, ELEMENTS = 256, 4  # per block; per thread, 16 bytes


def compile(arch: str) -> ObjectCode:
    """The kernel as machine code. arch: such as "sm_90". Needs no GPU. Raises NVRTC's message, with file and line."""
    headers = pathfinder.find_nvidia_header_directory("cudart")  # the folder of cuda_fp16.h
    options = ProgramOptions(name=SOURCE.name, arch=arch, std="c++17", include_path=headers)
    return Program(SOURCE.read_text(), "c++", options).compile("cubin", name_expressions=[KERNEL])


@functools.cache
def load(device: int):
    Device(device).set_current()
    return compile("sm_{}{}".format(*torch.cuda.get_device_capability(device))).get_kernel(KERNEL)


@torch.library.custom_op("ways::nvrtc_add", mutates_args=(), device_types="cuda")
def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c = torch.empty_like(a)
    with torch.cuda.device(a.device):
        Device(a.get_device()).set_current()  # a new thread, such as autograd's, may have no CUDA context yet
        stream = Stream.from_handle(torch.cuda.current_stream().cuda_stream)
        n = a.numel()
        if n:  # a block more, for elements after the last whole vector
            config = LaunchConfig(grid=-(-(n // ELEMENTS) // THREADS) + 1, block=THREADS)
            launch(stream, config, load(a.get_device()), c.data_ptr(), a.data_ptr(), b.data_ptr(), n)
    return c


add.register_fake(lambda a, b: torch.empty_like(a))
add.register_autograd(lambda ctx, grad: (grad, grad))
