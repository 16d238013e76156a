"""The cmake build: CMakeLists.txt in the project's folder leaves build/libadd2.so. In a shell:

cmake -S . -B build
cmake --build build --parallel
"""

import os
import shutil
from pathlib import Path

import torch

from . import toolchain


def steps(folder: str) -> list[list[str]]:
    """The two commands. The options name what CMake would find itself: torch, nvcc and GPUs, as in the other builds."""
    configure = ["cmake", "-S", ".", "-B", f"{folder}/build", f"-DTORCH_DIR={Path(torch.__file__).parent}"]
    if nvcc := toolchain.find_nvcc():
        gpus = toolchain.arch_list().replace(".", "").split(";")  # "8.0;9.0+PTX" is "80-real;90" in CMake's notation
        gpus = ";".join(gpu.removesuffix("+PTX") if "+PTX" in gpu else f"{gpu}-real" for gpu in gpus)
        configure += [f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCMAKE_CUDA_ARCHITECTURES={gpus}"]
    configure += [f"-DADD2_WITH_CUDA={'ON' if nvcc else 'OFF'}"]
    if shutil.which("ninja", path=toolchain.tool_path()):
        configure += ["-G", "Ninja"]
    return [configure, ["cmake", "--build", f"{folder}/build", "--verbose", f"-j{os.environ.get('MAX_JOBS', '')}"]]
