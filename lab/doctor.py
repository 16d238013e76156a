"""Examine this machine: a line for each thing that a build needs, and the cure where it is wrong (exit status 1).

python3 -m lab.doctor
"""

import argparse
import functools
import importlib.metadata
import sys
from pathlib import Path

import torch
from torch.utils import cpp_extension

from . import toolchain


def _torch() -> str:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        raise RuntimeError(f"{torch.__version__} is too old: `python3 -m pip install --upgrade torch`")
    return f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, Python {sys.version.split()[0]}"


def _gpu() -> str:
    names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    return ", ".join(names) or "none is found (or no driver, or a torch without CUDA); everything runs on the CPU"


def _nvcc() -> str:
    if nvcc := toolchain.find_nvcc():
        return f"CUDA {toolchain.check_nvcc(nvcc)}, {nvcc}; compiles for {toolchain.arch_list()}"
    return f"none, so only the CPU part is built: {toolchain.cuda_cure()}"


def _cuda_home() -> str:
    """This project finds the toolkit by itself; a project of your own relies on torch's guess."""
    home, nvcc = cpp_extension.CUDA_HOME, toolchain.find_nvcc()
    if nvcc is None:
        return "not needed without nvcc"
    if not (home and Path(home, "bin/nvcc").exists() and Path(home, "include/cuda_runtime.h").exists()):
        cure = f"a project of your own may not build: `export CUDA_HOME={toolchain.cuda_root(nvcc)}`"
        raise RuntimeError(f"torch takes {home}, which is no toolkit; {cure}")
    if not list(Path(home).glob("lib*/libcudart.so")):
        cure = f"`cd {home}/lib && ln -s libcudart.so.* libcudart.so`"
        raise RuntimeError(
            f"there is no libcudart.so in {home}; a project of your own that links -lcudart fails: {cure}"
        )
    return home


CHECKS = {"torch": _torch, "GPU": _gpu, "nvcc": _nvcc, "CUDA_HOME": _cuda_home, "C++": toolchain.host_compiler}
CHECKS |= {tool: functools.partial(toolchain.require, tool) for tool in ("ninja", "cmake")}
CHECKS["setuptools"] = lambda: importlib.metadata.version("setuptools")


def main() -> int:
    argparse.ArgumentParser(prog="python3 -m lab.doctor", description="Examine this machine.").parse_args()
    status = 0
    for subject, check in CHECKS.items():
        try:
            print(f"ok     {subject:<11} {check()}")
        except (RuntimeError, ImportError) as error:
            print(f"WRONG  {subject:<11} {error}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
