"""Leaves src/scaled_relu/_C.so, or with `pip wheel` one wheel for every Python and every torch from 2.10 on. It reads
CUDA_HOME (the toolkit's folder) and TORCH_CUDA_ARCH_LIST (such as "8.0;9.0+PTX"; default: this machine's GPUs)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

# torch looks for the toolkit around the nvcc on PATH. That nvcc may be a script elsewhere; it says where its TOP is.
if (nvcc := shutil.which("nvcc")) and not (os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")):
    dryrun = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True)
    if top := re.search(r"^#\$ TOP=(.+)$", dryrun.stderr, re.MULTILINE):
        os.environ["CUDA_HOME"] = os.path.realpath(top[1].strip())
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension  # reads CUDA_HOME

cuda = bool(torch.version.cuda and CUDA_HOME and Path(CUDA_HOME, "bin/nvcc").exists())
if not cuda:
    why = "found no nvcc (set CUDA_HOME to a CUDA toolkit)" if torch.version.cuda else "this torch has no CUDA"
    if os.environ.get("TORCH_CUDA_ARCH_LIST"):  # a wheel for GPUs: pip would hide the warning
        raise SystemExit(f"setup.py: TORCH_CUDA_ARCH_LIST is set, but {why}; unset it to build only the CPU part")
    print(f"setup.py: {why}, so only the CPU part is built", file=sys.stderr)
if not torch.cuda.is_available():  # no GPU to compile for: PTX, which a GPU's driver finishes compiling
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "7.5+PTX")

flags = ["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] + ["-DUSE_CUDA"] * cuda
extension = (CUDAExtension if cuda else CppExtension)(
    "scaled_relu._C",
    ["csrc/scaled_relu.cpp"] + ["csrc/scaled_relu_kernel.cu"] * cuda,
    extra_compile_args={"cxx": [*flags, "-fvisibility=hidden"], "nvcc": [*flags, "-Xcompiler=-fvisibility=hidden"]},
    # Of torch's libraries only libtorch.so, which every torch has. The CUDA runtime goes into our library.
    extra_link_args=["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed", "-Wl,--exclude-libs,ALL"]
    + ["-lcudart_static", "-lrt", "-ldl", "-lpthread"] * cuda,
)
extension.libraries = []


class Wheel(bdist_wheel):
    def get_tag(self):  # the library uses nothing of Python
        return "py3", "none", super().get_tag()[2]


if not {"--inplace", "editable_wheel"}.isdisjoint(sys.argv):  # a build that fails must not leave the old library
    Path("src/scaled_relu/_C.so").unlink(missing_ok=True)
build = BuildExtension.with_options(no_python_abi_suffix=True)
setup(ext_modules=[extension], cmdclass={"build_ext": build, "bdist_wheel": Wheel})
