"""What the lessons' operators share in Python: how a library is built, and how an operator gets its derivatives."""

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils import cpp_extension

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import toolchain  # of the workbench only this file, which imports nothing else of it

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FLAGS = ["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"]  # runs on torch 2.10 and later


def has_toolkit() -> bool:
    """Whether load() compiles CUDA sources: there is an nvcc, and it fits torch."""
    with mock.patch.dict(os.environ, toolchain.environment()):
        return toolchain.find_nvcc() is not None


def is_ready(build: Callable[[], str]) -> bool:
    """Whether build() has made the kernels, too: for programs that measure them."""
    return has_toolkit() and bool(build())


def target_flags(oldest: int, hopper: bool = False) -> list[str]:
    """nvcc's flags for all visible GPUs from `oldest` on (80: compute capability 8.0), where TORCH_CUDA_ARCH_LIST does
    not name them and torch's own flags are not right: it finds none without a GPU (IndexError), and names sm_90 for an
    H100 or H200, which has wgmma only as sm_90a (hopper: the operator wants it)."""
    if "TORCH_CUDA_ARCH_LIST" in os.environ:
        return []
    gpus = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    if not gpus:  # PTX, which the driver of any later GPU finishes compiling
        return [f"-gencode=arch=compute_{oldest},code=compute_{oldest}"]
    if not hopper or (9, 0) not in gpus:
        return []
    names = [f"{10 * major + minor}" for major, minor in sorted(gpus) if 10 * major + minor >= oldest]
    names = ["90a" if name == "90" else name for name in names]
    return [f"-gencode=arch=compute_{name},code=sm_{name}" for name in names]


def load(name: str, sources: list[Path], cuda_flags: Sequence[str]) -> str:
    """Compile what is out of date and load it; CUDA sources only where there is an nvcc. Returns the library's path.

    Where CUDA sources are part of the library, USE_CUDA is defined: torch's headers then declare what they have for
    CUDA, too. A toolchain.Failure, if a GPU is here and the nvcc does not fit torch.
    """
    with toolchain.torch_load(name) as (_, nvcc, link):
        if torch.cuda.is_available() and not nvcc:
            print(f"building only the CPU part: {toolchain.cuda_cure()}")
        return cpp_extension.load(
            name,
            [str(path) for path in sources if nvcc or path.suffix != ".cu"],
            extra_cflags=FLAGS + (["-DUSE_CUDA"] if nvcc else []),
            extra_cuda_cflags=["-O3", "-std=c++17", *cuda_flags],
            extra_ldflags=[*link, "-Wl,--no-as-needed", "-ltorch"],
            extra_include_paths=[str(Path(__file__).parents[1])],
            is_python_module=False,
        )


@functools.cache
def load_launcher(name: str, source: Path, *cuda_flags: str, function: str = "launch_ladder") -> Callable:
    """Compile a .cu file and return a launcher of it: a C function whose last argument is a stream, and which returns
    NULL or an error message."""
    launcher = ctypes.CDLL(load(name, [source], cuda_flags))[function]
    launcher.restype = ctypes.c_char_p
    return launcher


def launch(launcher: Callable, *arguments: object) -> None:
    """Call a launcher on torch's current stream. Its error message becomes a RuntimeError. A tensor goes as its
    pointer, an int as a C int, a value of ctypes unchanged."""
    values = [ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else x for x in arguments]
    if error := launcher(*values, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)):
        raise RuntimeError(f"{launcher.__name__}: {error.decode()}")


def expect(name: str, is_right: bool, message: str) -> None:
    """For fake kernels. No `if`: a size may depend on data, and the compiler then assumes what is checked here."""
    torch._check(is_right, lambda: f"{name}: {message}")


def expect_one_device(name: str, *tensors: Tensor | None) -> None:
    """For fake kernels: a call with one tensor on "meta" comes there, too, and would return uninitialized memory."""
    devices = sorted({str(x.device) for x in tensors if x is not None})
    expect(name, len(devices) == 1, f"tensors on {' and '.join(devices)}, expected one device")


def cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """x as torch.autocast casts an argument: numbers with a fraction, except float64. The operator refuses others."""
    if x is None or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(dtype)


def vmap_one_by_one(op: Callable, info, in_dims: tuple[int | None, ...], *args: object) -> tuple:
    """vmap in the plainest way: one call per member, with all checks; for an empty batch one with zeros, for the
    shapes. The result of a rule for torch.library.register_vmap."""

    def member(i: int) -> list:
        pick = Tensor.sum if info.batch_size == 0 else functools.partial(Tensor.select, index=i)
        return [x if dim is None else pick(x, dim=dim) for x, dim in zip(args, in_dims, strict=True)]

    results = [op(*member(i)) for i in range(max(info.batch_size, 1))]
    if isinstance(results[0], Tensor):
        return torch.stack(results)[: info.batch_size], 0
    return tuple(torch.stack(each)[: info.batch_size] for each in zip(*results, strict=True)), 0


def unpack(x: Tensor):
    """x without its forward derivative, and that: primal, tangent. unpack_dual's default level is wrong while
    torch.compile traces."""
    return unpack_dual(x, level=0 if torch.compiler.is_compiling() else None)


def has_derivative(x: object) -> bool:
    """Whether x has a forward derivative, or any that a transform of torch.func takes."""
    if isinstance(x, Tensor) and torch.func.debug_unwrap(x) is not x:
        return x.requires_grad or unpack_dual(x, level=0).tangent is not None
    return isinstance(x, Tensor) and unpack(x).tangent is not None


def is_tangent_hidden(*arguments: object) -> bool:
    """Whether torch.compile would lose a forward derivative: torch 2.10 and 2.11 hide it from register_derivatives. An
    operator's public function asks, and then computes by torch's own functions. Not needed from torch 2.13 on."""
    if not _HIDES_TANGENTS or not torch.compiler.is_compiling():
        return False
    return any(isinstance(x, Tensor) and unpack_dual(x).tangent is not None for x in arguments)


_HIDES_TANGENTS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def register_derivatives(op: torch._ops.OpOverload, by_torch: Callable, with_gradient: Callable) -> None:
    """Every derivative for an operator, as docs/4_gradients.md explains it.

    by_torch(*arguments): the same by torch's own functions, for torch.func and forward derivatives.
    with_gradient(below, *arguments): for an ordinary gradient; apply() of an autograd.Function that calls `below`.
    Either may raise an error instead.
    """

    @torch.compiler.disable  # torch.compile runs this to trace the operator, and must not compile it by itself as well
    def autograd(keys, *arguments):
        below = functools.partial(op.redispatch, keys.remove(keys.highestPriorityTypeId()))
        if any(map(has_derivative, arguments)):
            with torch.no_grad():  # only for its checks
                below(*(unpack(x).primal if isinstance(x, Tensor) else x for x in arguments))
            return by_torch(*arguments)
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
            return with_gradient(below, *arguments)
        return below(*arguments)

    library(op.namespace).impl(op, autograd, "Autograd", with_keyset=True)


@functools.cache  # what a library has registered goes with it
def library(namespace: str) -> torch.library.Library:
    """To register kernels written in Python for a lesson's operators."""
    return torch.library.Library(namespace, "FRAGMENT")
