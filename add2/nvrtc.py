"""The operator in Python: the counterpart of add2.cpp and add2_kernel.cu, where no C++ can be compiled.

NVRTC, NVIDIA's run-time compiler, comes with every CUDA build of torch and compiles add2_kernel.cuh for the GPU that is
here. The rest is Python: checks, current stream, launch, registration. Needs the package cuda-core. To use it, set the
environment variable ADD2_NVRTC=1 before the first `import add2`.
"""

import functools
import re
from pathlib import Path

import torch
from cuda import pathfinder
from cuda.core import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, Stream, launch
from torch import Tensor

SOURCE = Path(__file__).resolve().parents[1] / "kernel" / "add2_kernel.cuh"
TYPES = {torch.float32: "float", torch.float64: "double", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def constants() -> dict[str, int]:
    """The geometry of a launch, as it stands in add2_kernel.cuh: kThreads and the like."""
    return {name: int(number) for name, number in re.findall(r"constexpr int (\w+) = (\d+);", SOURCE.read_text())}


def kernels(dtype: torch.dtype) -> tuple[str, str]:
    """The C++ names of the two kernels in use: for aligned tensors, and for others."""
    return f"add2_vector<{TYPES[dtype]}>", f"add2_unaligned<{TYPES[dtype]}>"


def headers() -> str:
    """The folder of cuda_fp16.h and its like, which one of torch's packages brings."""
    return pathfinder.find_nvidia_header_directory("cudart")


@functools.cache
def compile(arch: str, dtype: torch.dtype) -> ObjectCode:
    """The kernels of one dtype as machine code; takes 0.1 s. arch: such as "sm_90". Needs no GPU, and no driver.

    Raises:
        Exception: NVRTC's own message, with file and line.
    """
    options = ProgramOptions(name="kernel/add2_kernel.cuh", arch=arch, std="c++17", include_path=headers())
    names = kernels(dtype)
    return Program(SOURCE.read_text(), "c++", options).compile("cubin", name_expressions=[*names])


@functools.cache
def load(device: int, dtype: torch.dtype) -> tuple[list, dict[str, int]]:
    """The same kernels, compiled and loaded, and their geometry: before the first call with this dtype on this GPU."""
    major, minor = torch.cuda.get_device_capability(device)
    code = compile(f"sm_{major}{minor}", dtype)
    return [code.get_kernel(name) for name in kernels(dtype)], constants()


@functools.cache
def _stream(device: int, stream_id: int) -> Stream:
    """torch's current stream on a GPU, as cuda.core's. stream_id: its id, by which it is found again."""
    return Stream.from_handle(torch.cuda.current_stream(device).cuda_stream)


_config = functools.lru_cache(maxsize=1024)(lambda grid, block: LaunchConfig(grid=grid, block=block))


def _add(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """c[0:n] = a[0:n] + b[0:n], as they lie in memory."""
    if n == 0:
        return
    if not c.is_cuda:  # there is no run-time compiler for a CPU; torch's own add gives the same bits
        flat = [torch.as_strided(x, (n,), (1,)) for x in (a, b, c)]
        torch.add(flat[0], flat[1], out=flat[2])
        return
    device = c.get_device()
    if device != torch.accelerator.current_device_index():
        with torch.cuda.device(device):
            return _add(c, a, b, n)
    # torch may have only noted its current device. A new thread, such as autograd's, may have none yet.
    Device(device).set_current()
    out, x, y = c.data_ptr(), a.data_ptr(), b.data_ptr()
    (vector, unaligned), its = load(device, c.dtype)
    if (out | x | y) % 16:
        kernel, threads = unaligned, its["kThreads"]
        grid = -(-n // (threads * its["kSteps"]))
    else:
        kernel, elements = vector, 16 // c.element_size()
        threads = its["kThreads"] if n * c.element_size() < its["kLargeBytes"] else its["kLargeThreads"]
        grid = -(-(n // elements) // threads)
        if n % elements:
            grid += 1  # a block for the elements after the last whole vector
    stream = _stream(device, torch.accelerator.current_stream(device).stream_id)  # where torch's kernels are queued
    launch(stream, _config(grid, threads), kernel, out, x, y, n)


def _laid_out(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """x, or a copy of it in another layout: the kernels compiled here do not use strides."""
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def add2(a: Tensor, b: Tensor) -> Tensor:
    _check_tensors(a=a, b=b)
    shapes.check_shapes(a, b)
    if a.is_contiguous() and b.is_contiguous():
        c = torch.empty_like(a, memory_format=torch.contiguous_format)
        _add(c, a, b, c.numel())
        return c
    # torch.add's layout: ask it, with tensors without values.
    x, y = (torch.empty_strided(x.shape, x.stride(), device="meta") for x in (a, b))
    strides = torch.add(x, y).stride()
    c = torch.empty_strided(a.shape, strides, dtype=a.dtype, device=a.device)
    _add(c, _laid_out(a, strides), _laid_out(b, strides), c.numel())
    return c


def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    _check_tensors(c=c, a=a, b=b)
    shapes.check_length(n, c=c, a=a, b=b)
    shapes.check_contiguous(c)
    for name, x in (("a", a), ("b", b)):
        if n:
            first, c_first = (tensor.data_ptr() // tensor.element_size() for tensor in (x, c))
            shapes.check_overlap(c, x, name, c_first, first)
    _add(c, a.contiguous(), b.contiguous(), n)


def _check_tensors(**tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x is None or x.layout is not torch.strided or x.is_neg() or not (x.is_cuda or x.is_cpu):
            problem = "is no tensor, or sparse, or has a pending minus sign, or is not on a CPU or a CUDA device"
            raise RuntimeError(f"add2: {name} {problem}")
        if x.numel() and not x.data_ptr():
            raise RuntimeError("add2: a tensor has no memory")
    shapes.check_alike(**tensors)


def register() -> None:
    """Register torch.ops.add2. `import add2` calls it first, and adds gradients and the rest as with every build."""
    global _library, shapes  # what a library has registered goes when it goes
    _library = torch.library.Library("add2", "DEF")
    _library.define("add2(Tensor a, Tensor b) -> Tensor")
    _library.define("torch_launch_add2(Tensor(a!) c, Tensor a, Tensor b, SymInt n) -> ()")
    for key in ("CPU", "CUDA"):
        _library.impl("add2", add2, key)
        _library.impl("torch_launch_add2", torch_launch_add2, key)
    from . import shapes
