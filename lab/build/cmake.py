"""The CMake build: CMakeLists.txt in the project's folder leaves build/libadd2.so. In a shell:

cmake -S . -B build --fresh
cmake --build build --parallel
"""

import shutil
import sys
from pathlib import Path

import torch

from . import toolchain


def steps(binding: str, with_cuda: bool) -> tuple[list[list[str]], dict[str, str]]:
    """The two commands, and the environment variables for them. The options name what CMake would find by itself: the
    same torch, nvcc and GPUs as in the other builds."""
    # --fresh: whatever changed is compiled again, also where its time is old, and nothing of another torch is used.
    configure = ["cmake", "-S", ".", "-B", "build", "--fresh"]
    configure += [f"-DPython3_EXECUTABLE={sys.executable}", f"-DTORCH_DIR={Path(torch.__file__).parent}"]
    configure += [f"-DADD2_WITH_CUDA={'ON' if with_cuda else 'OFF'}"]
    if with_cuda:
        gpus = toolchain.cmake_architectures(toolchain.arch_list())
        configure += [f"-DCMAKE_CUDA_COMPILER={toolchain.find_nvcc()}", f"-DCMAKE_CUDA_ARCHITECTURES={gpus}"]
    if shutil.which("ninja", path=toolchain.tool_path()):
        configure += ["-G", "Ninja"]
    build = ["cmake", "--build", "build", "--verbose"]
    return [configure, build], {"CMAKE_BUILD_PARALLEL_LEVEL": toolchain.max_jobs()}
