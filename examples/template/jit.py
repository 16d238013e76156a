"""The build: torch compiles what has changed when this is imported, and loads the library."""

import os
from pathlib import Path

import torch
from torch.utils import cpp_extension

_ROOT = Path(__file__).resolve().parents[1]
_cuda = torch.version.cuda is not None and cpp_extension.CUDA_HOME is not None
if not torch.cuda.is_available():  # no GPU to compile for: PTX, which the driver of any later one finishes compiling
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "7.5+PTX")

cpp_extension.load(
    name="add2",
    sources=[f"{_ROOT}/kernel/add2.cpp", f"{_ROOT}/kernel/add2_cpu.cpp"] + [f"{_ROOT}/kernel/add2_kernel.cu"] * _cuda,
    extra_include_paths=[f"{_ROOT}/include"],
    extra_cflags=["-O3", "-std=c++17", "-fvisibility=hidden", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    + ["-DADD2_WITH_CUDA"] * _cuda,
    extra_ldflags=["-Wl,--no-as-needed", "-ltorch"],
    with_cuda=_cuda,
    is_python_module=False,  # loading the library registers the operator
)
