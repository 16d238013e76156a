"""One wheel for every Python and every torch from 2.10 on: pip wheel --no-build-isolation --no-deps ."""

import torch
from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

with_cuda = torch.version.cuda is not None and CUDA_HOME is not None
sources = ["blend/csrc/blend.cpp"] + ["blend/csrc/blend_cuda.cu"] * with_cuda
macros = [("TORCH_TARGET_VERSION", "0x020a000000000000")] + [("WITH_CUDA", None)] * with_cuda
flags = {"nvcc": ["-lineinfo"]}  # so that a memory check or a profiler can name a line; it does not change the code
extension = (CUDAExtension if with_cuda else CppExtension)(
    "blend._C", sources, define_macros=macros, extra_compile_args=flags
)
# libtorch.so stands for all of torch's libraries, with CUDA or without. The CUDA runtime goes into ours.
extension.libraries = ["cudart_static", "rt", "dl", "pthread"] * with_cuda
extension.extra_link_args = ["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed", "-Wl,--exclude-libs,ALL"]


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[extension],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True), "bdist_wheel": AnyPython},
)
