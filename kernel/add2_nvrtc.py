"""The operator in Python: the counterpart of add2.cpp and add2_kernel.cu, where no C++ can be compiled.

NVRTC, NVIDIA's run-time compiler, comes with every CUDA build of torch and compiles add2_kernel.cuh for the GPU that is
here. The rest is Python: checks, current stream, launch, registration. Needs the package cuda-core. By hand, in this
project's folder: `from kernel import add2_nvrtc; add2_nvrtc.register(); import add2`.
"""

import functools
import re
import threading
from pathlib import Path
from typing import NoReturn

import torch
from cuda import pathfinder
from cuda.core import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, Stream, launch
from torch import Tensor

SOURCE = Path(__file__).resolve().with_name("add2_kernel.cuh")
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
_thread = threading.local()


def _add(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """c[0:n] = a[0:n] + b[0:n], where all is known to fit."""
    if not (c.data_ptr() and a.data_ptr() and b.data_ptr()):
        _refuse("a tensor has no memory")
    a, b = a.contiguous(), b.contiguous()  # a kernel knows no strides
    if not c.is_cuda:  # there is no run-time compiler for a CPU; torch's own add gives the same bits
        torch.add(a.view(-1)[:n], b.view(-1)[:n], out=c.view(-1)[:n])
        return
    device = c.get_device()
    if device != torch.accelerator.current_device_index():
        with torch.cuda.device(device):
            return _add(c, a, b, n)
    if not hasattr(_thread, "is_ready"):  # a new thread, such as autograd's, may have no CUDA context yet
        Device(device).set_current()
        _thread.is_ready = True
    launch(*launch_arguments(device, c, a, b, n))


def launch_arguments(device: int, c: Tensor, a: Tensor, b: Tensor, n: int) -> tuple:
    """For cuda.core.launch: stream, grid and block, kernel, and the kernel's own arguments."""
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
    return stream, _config(grid, threads), kernel, out, x, y, n


def add2(a: Tensor, b: Tensor) -> Tensor:
    _check_alike(a=a, b=b)
    if a.shape != b.shape:
        _refuse(f"b has shape {[*b.shape]}, expected {[*a.shape]}")
    c = torch.empty_like(a, memory_format=torch.contiguous_format)
    if n := c.numel():
        _add(c, a, b, n)
    return c


def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    _check_alike(c=c, a=a, b=b)
    for name, x in (("c", c), ("a", a), ("b", b)):
        if not 0 <= n <= x.numel():
            _refuse(f"n is {n}, expected 0 to {x.numel()}, all of {name}")
    if not c.is_contiguous():
        _refuse(f"c of shape {[*c.shape]} is not contiguous")
    if n:
        _check_overlap(c, a, "a")
        _check_overlap(c, b, "b")
        _add(c, a, b, n)


# The checks of kernel/add2.cpp, in the same words.


def _refuse(text: str) -> NoReturn:
    raise RuntimeError(f"add2: {text}")


def _check_alike(**tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x is None or x.layout is not torch.strided or x.is_neg() or not (x.is_cuda or x.is_cpu):
            _refuse(f"{name} is no tensor, or sparse, or has a pending minus sign, or is not on a CPU or a CUDA device")
    shapes.check_alike(**tensors)


def _check_overlap(c: Tensor, x: Tensor, name: str) -> None:
    begin, c_begin = x.data_ptr(), c.data_ptr()
    if begin == c_begin and x.is_contiguous():
        return
    last = sum((length - 1) * stride for length, stride in zip(x.shape, x.stride(), strict=True))
    if begin < c_begin + c.nbytes and c_begin < begin + (1 + last) * x.element_size():
        _refuse(f"c shares memory with {name}, but is not {name} itself; pass a clone()")


def register() -> None:
    """Register torch.ops.add2. `import add2` adds gradients and the rest, as with every build."""
    global _library, shapes  # what a library has registered goes when it goes
    _library = torch.library.Library("add2", "DEF")
    _library.define("add2(Tensor a, Tensor b) -> Tensor")
    _library.define("torch_launch_add2(Tensor(a!) c, Tensor a, Tensor b, SymInt n) -> ()")
    for key in ("CPU", "CUDA"):
        _library.impl("add2", add2, key)
        _library.impl("torch_launch_add2", torch_launch_add2, key)
    import add2 as package  # it finds the operator registered
    from add2 import shapes

    if package.add2.__module__ == "add2.fast":  # from Python to Python there is no need of the dispatcher: 3 us
        package.fast._add2 = lambda _, a, b: add2(a, b)
        package.fast._launch = lambda _, c, a, b, n: torch_launch_add2(c, a, b, n)
