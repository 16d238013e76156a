"""python3 setup.py build_ext --inplace, or: pip install --no-build-isolation -e ."""

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

with_cuda = torch.version.cuda is not None and CUDA_HOME is not None
Extension = CUDAExtension if with_cuda else CppExtension
sources = ["points/csrc/binding.cpp", "points/csrc/points_cpu.cpp"] + ["points/csrc/points_cuda.cu"] * with_cuda
macros = [("WITH_CUDA", None)] * with_cuda

setup(
    name="points",
    version="1.0",
    packages=["points"],
    ext_modules=[Extension("points._C", sources, define_macros=macros)],
    cmdclass={"build_ext": BuildExtension},
)
