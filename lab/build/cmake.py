"""The CMake build: CMakeLists.txt in the project's folder leaves build/libadd2.so. In a shell:

cmake -S . -B build
cmake --build build --parallel
"""

import shutil
import sys
from pathlib import Path

import torch

from . import commands, toolchain


def recipe(binding: str, folder: Path = Path("FOLDER")) -> tuple[list[list[str]], dict[str, str]]:
    """The two commands, and the environment variables for them. The options name what CMake would find by itself: the
    same torch, nvcc and GPUs as in the other builds."""
    nvcc = toolchain.find_nvcc()
    configure = ["cmake", "-S", ".", "-B", str(folder)]
    configure += [f"-DPython3_EXECUTABLE={sys.executable}", f"-DTORCH_DIR={Path(torch.__file__).parent}"]
    configure += [f"-DADD2_WITH_CUDA={'ON' if nvcc else 'OFF'}"]
    if nvcc:
        gpus = toolchain.cmake_architectures()
        configure += [f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCMAKE_CUDA_ARCHITECTURES={gpus}"]
    if shutil.which("ninja", path=toolchain.tool_path()):
        configure += ["-G", "Ninja"]
    build = ["cmake", "--build", str(folder), "--verbose"]
    return [configure, build], {"CMAKE_BUILD_PARALLEL_LEVEL": toolchain.max_jobs()}


def build(folder: Path, binding: str, log: Path) -> tuple[Path, list[str]]:
    """The library, and the commands that ran."""
    return folder / "libadd2.so", commands.run(*recipe(binding, folder), log)
