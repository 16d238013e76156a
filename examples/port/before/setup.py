"""python3 setup.py build_ext --inplace, or: pip install --no-build-isolation -e ."""

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

with_cuda = torch.version.cuda is not None and CUDA_HOME is not None
Extension = CUDAExtension if with_cuda else CppExtension
sources = ["blend/csrc/blend.cpp", "blend/csrc/binding.cpp"] + ["blend/csrc/blend_cuda.cu"] * with_cuda
macros = [("WITH_CUDA", None)] * with_cuda

setup(
    name="blend",
    version="1.0",
    packages=["blend"],
    ext_modules=[Extension("blend._C", sources, define_macros=macros)],
    cmdclass={"build_ext": BuildExtension},
)
