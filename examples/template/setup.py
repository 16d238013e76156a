"""The build: leaves add2/_C.abi3.so, or with `pip wheel` one wheel for every Python and torch since 2.10.

python3 -m pip install --no-build-isolation -e .
"""

import os
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

cuda = torch.version.cuda is not None and CUDA_HOME is not None
if not torch.cuda.is_available():  # no GPU to compile for: PTX, which the driver of any later one finishes compiling
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "7.5+PTX")

cxx = ["-O3", "-g0", "-std=c++17", "-fvisibility=hidden", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
operator = (CUDAExtension if cuda else CppExtension)(
    name="add2._C",
    sources=["kernel/add2.cpp", "kernel/add2_cpu.cpp"] + ["kernel/add2_kernel.cu"] * cuda,
    include_dirs=[str(Path(__file__).resolve().parent / "include")],
    extra_compile_args={"cxx": cxx + ["-DADD2_WITH_CUDA"] * cuda, "nvcc": ["-O3"]},
    # Of torch's libraries only libtorch.so is named, which every torch has. The CUDA runtime goes into our library.
    extra_link_args=["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed"]
    + ["-lcudart_static", "-lrt", "-ldl", "-lpthread"] * cuda,
    py_limited_api=True,
)
operator.libraries = []

setup(
    name="add2",
    install_requires=["torch>=2.10"],
    packages=["add2"],
    ext_modules=[operator],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
