"""Examine this machine: a line for each thing that a build needs, and the cure where it is wrong (exit status 1).
A note is about something that time.py and train.py do not need.

python3 -m lab.doctor
"""

import shutil
import sys
import sysconfig
from pathlib import Path

import torch
from torch.utils import cpp_extension

from . import toolchain


def _gpu() -> str:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names) or "none is found (or no driver, or a torch without CUDA); everything runs on the CPU"


def _nvcc() -> str:
    if nvcc := toolchain.find_nvcc():
        return f"CUDA {toolchain.check_nvcc(nvcc)}, {nvcc}; compiles for {toolchain.arch_list()}"
    return f"not used ({shutil.which('nvcc') or 'not on PATH'}): only the CPU part is built, as {toolchain.cuda_cure()}"


def _cmake() -> str:
    return toolchain.require("cmake", "Only `--compiler cmake` and tests need it: `python3 -m pip install cmake`.")


def _cuda_home() -> str:
    """time.py, train.py and examples/starter find the toolkit by themselves; others rely on torch's guess."""
    home, nvcc = cpp_extension.CUDA_HOME, toolchain.find_nvcc()
    if nvcc is None:
        return "not needed without nvcc"
    if not (home and all(Path(home, file).exists() for file in ("bin/nvcc", "include/cuda_runtime.h"))):
        cure = f"for examples/minimal and for other projects `export CUDA_HOME={toolchain.cuda_root(nvcc)}`"
        raise RuntimeError(f"torch takes {home}, which is no toolkit; {cure}")
    if not list(Path(home).glob("lib*/libcudart.so")):
        cure = f"`cd {home}/lib && ln -s libcudart.so.* libcudart.so`"
        raise RuntimeError(f"there is no libcudart.so in {home}, and most projects link with -lcudart; {cure}")
    return home


def _python_h() -> str:
    """torch.compile needs it on a CPU, as do extensions with pybind11. The builds of add2 do not."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        cure = "`sudo apt-get install python3-dev`, or a Python that has its headers"
        raise RuntimeError(f"there is no {header}, which torch.compile needs on a CPU; {cure}")
    return str(header)


CHECKS = {
    "torch": lambda: f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, Python {sys.version.split()[0]}",
    "GPU": _gpu,
    "nvcc": _nvcc,
    "CUDA_HOME": _cuda_home,
    "C++": toolchain.host_compiler,
    "Python.h": _python_h,
    "ninja": lambda: toolchain.require("ninja"),
    "cmake": _cmake,
    "setuptools": toolchain.check_setuptools,
}
NOTES = ("CUDA_HOME", "Python.h", "cmake")

status = 0
for subject, check in CHECKS.items():
    try:
        print(f"       {subject:<11} {check()}")
    except (RuntimeError, ImportError, OSError) as error:
        mark = "note" if subject in NOTES else "WRONG"
        print(f"{mark:<6} {subject:<11} {error}")
        if mark == "WRONG":
            status = 1
sys.exit(status)
