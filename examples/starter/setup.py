"""Leaves src/squared_relu/_C.so, or with `pip wheel` one wheel for every Python and every torch from 2.10 on.

It reads these variables of the environment:
    CUDA_HOME              the folder of the CUDA toolkit; without it, that of the nvcc on PATH
    TORCH_CUDA_ARCH_LIST   the GPUs to compile for, such as "8.0;9.0+PTX"; without it, those of this machine
    DEBUG=1                a build for debuggers: -O0 -g, and -G for the kernels
    CXX, PYTORCH_NVCC      other compilers; for ccache PATH=/usr/lib/ccache:$PATH PYTORCH_NVCC="ccache nvcc"
"""

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
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

cuda = bool(torch.version.cuda and CUDA_HOME and Path(CUDA_HOME, "bin/nvcc").exists())
if not cuda:
    why = "found no nvcc (set CUDA_HOME to a CUDA toolkit)" if torch.version.cuda else "this torch has no CUDA"
    if os.environ.get("TORCH_CUDA_ARCH_LIST"):  # a wheel for GPUs: pip would hide the warning
        raise SystemExit(f"setup.py: TORCH_CUDA_ARCH_LIST is set, but {why}; unset it to build only the CPU part")
    print(f"setup.py: {why}, so only the CPU part is built", file=sys.stderr)
if not torch.cuda.is_available():  # no GPU to compile for: PTX, which a GPU's driver finishes compiling
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "7.5+PTX")

# Python's own command for linking may write a path of this machine into the library, which needs nothing of Python.
for name in ("LDSHARED", "LDCXXSHARED"):
    os.environ.setdefault(name, f"{os.environ.get('CXX', 'c++')} -shared")

debug = os.environ.get("DEBUG", "0") != "0"
both = ["-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] + ["-DUSE_CUDA"] * cuda
# -fno-trapping-math: without it gcc uses no vector instructions for a loop with `condition ? one : other`.
cxx = ["-Wall", "-fvisibility=hidden", *(["-O0", "-g"] if debug else ["-O3", "-g0", "-fno-trapping-math"])]
# -lineinfo: profilers and compute-sanitizer then name the line of the source. It costs no time at run time.
nvcc_flags = ["-Xcompiler=-fvisibility=hidden", *(["-O0", "-g", "-G"] if debug else ["-O3", "-lineinfo"])]

sources = ["csrc/squared_relu.cpp", "csrc/squared_relu_cpu.cpp"]
sources += ["csrc/squared_relu_forward.cu", "csrc/squared_relu_backward.cu"] * cuda  # no two files of one stem
extension = (CUDAExtension if cuda else CppExtension)(
    "squared_relu._C",
    sources,
    extra_compile_args={"cxx": both + cxx, "nvcc": both + nvcc_flags},
    # Of torch's libraries only libtorch.so, which every torch has. The CUDA runtime goes into our library.
    extra_link_args=["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed", "-Wl,--exclude-libs,ALL"]
    + ["-lcudart_static", "-lrt", "-ldl", "-lpthread"] * cuda,
)
extension.libraries = []


class Wheel(bdist_wheel):
    def get_tag(self):  # the library uses nothing of Python
        return "py3", "none", super().get_tag()[2]


if not {"--inplace", "editable_wheel"}.isdisjoint(sys.argv):  # a build that fails must not leave the old library
    Path("src/squared_relu/_C.so").unlink(missing_ok=True)
setup(
    ext_modules=[extension],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True), "bdist_wheel": Wheel},
    options={"build_ext": {"force": True}},  # ask ninja, which notices an edit of a header and another flag
)
