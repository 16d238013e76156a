"""The setuptools build: leaves add2/_C.abi3.so, and with `pip wheel` one wheel for every Python and torch.

    python3 -m pip install --no-build-isolation -e .    # builds in place; `import add2` works from anywhere
    python3 setup.py build_ext --inplace                # builds only

--no-build-isolation matters: without it pip fetches a second torch of several GB to compile with. ninja compares
times, even with --force: after an edit with an old time (`cp -p`, `tar -x`), remove build/.

Environment variables:
    ADD2_WITH_CUDA=0         build only the CPU part (=1: fail where nvcc is missing, instead of leaving CUDA out)
    TORCH_CUDA_ARCH_LIST     the GPUs to compile for, such as "8.0;9.0+PTX"
    MAX_JOBS                 compile at most so many files at once
"""

import os
import runpy
import shutil
import sys
from pathlib import Path

import torch
from setuptools import setup

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)  # setuptools takes the sources' paths from the working directory
if sys.platform != "linux" or torch.version.hip:
    found = f"torch {torch.__version__} for ROCm" if torch.version.hip else sys.platform
    raise SystemExit(f"setup.py: add2 needs Linux, and a torch for CUDA or CPUs; this is {found}.")

# Is setuptools new enough? Where is an nvcc of PyPI, or one behind a script? (torch finds an ordinary toolkit itself.)
if (helper := ROOT / "lab/toolchain.py").exists():
    toolchain = runpy.run_path(str(helper))
    try:
        toolchain["check_setuptools"]()
    except toolchain["Failure"] as error:
        raise SystemExit(f"setup.py: {error}") from None
    if found := toolchain["find_nvcc"]():
        os.environ["CUDA_HOME"] = str(toolchain["cuda_root"](found))
from setuptools.command.bdist_wheel import bdist_wheel  # noqa: E402  (setuptools 70 and later)
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension  # noqa: E402

has_nvcc = bool(torch.version.cuda and CUDA_HOME and Path(CUDA_HOME, "bin/nvcc").exists())
wanted = os.environ.get("ADD2_WITH_CUDA", "")
with_cuda = wanted == "1" or (has_nvcc and wanted != "0")
if with_cuda and not has_nvcc:
    where = f"nvcc was looked for in {CUDA_HOME}/bin. Install the CUDA toolkit and set CUDA_HOME to its folder"
    raise SystemExit(f"setup.py: ADD2_WITH_CUDA=1, but torch is {torch.__version__} and {where}.")
if torch.version.cuda and not with_cuda:
    print("setup.py: no CUDA code will be built: nvcc was not found, or ADD2_WITH_CUDA=0", file=sys.stderr)

# -g0: Python's own flags for extensions have -g, which makes the library twice as large.
cxx = ["-O3", "-g0", "-fvisibility=hidden"] + ["-DADD2_WITH_CUDA"] * with_cuda
nvcc = ["-std=c++14", "-Xcompiler=-fvisibility=hidden"]
shipping = "bdist_wheel" in sys.argv  # `pip wheel .`, and `pip install .` without -e
if shipping:
    shutil.rmtree(ROOT / "build/wheel", ignore_errors=True)  # a wheel holds everything in its build folder
if with_cuda and not os.environ.get("TORCH_CUDA_ARCH_LIST"):
    if shipping:  # for other people's GPUs: code for every generation that nvcc knows, and PTX for later ones
        nvcc.append("-arch=all-major")
    elif not torch.cuda.is_available():  # PTX, which the driver of any later GPU finishes compiling as it loads it
        os.environ["TORCH_CUDA_ARCH_LIST"] = "7.5+PTX"

Extension = CUDAExtension if with_cuda else CppExtension
include = [str(ROOT / "include")]
# TORCH_TARGET_VERSION: use only what torch 2.10 had, so that the library runs on 2.10 and every later torch.
# c++17: torch's default, c++20, compiles slower.
flags = {"cxx": [*cxx, "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"], "nvcc": nvcc}
sources = ["kernel/add2.cpp", "kernel/add2_cpu.cpp"] + ["kernel/add2_kernel.cu"] * with_cuda
extension = Extension("add2._C", sources, include_dirs=include, extra_compile_args=flags)
# Extension() lists libtorch_cuda.so and libcudart.so, and a library that names them cannot be loaded where torch has no
# CUDA. libtorch.so stands for all of torch's libraries. The CUDA runtime goes into our library.
extension.libraries = []
extension.extra_link_args = ["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed", "-Wl,--exclude-libs,ALL"]
extension.extra_link_args += ["-lcudart_static", "-lrt", "-ldl", "-lpthread"] * with_cuda


# The library uses no symbol of Python, so one file and one wheel serve every Python. (setuptools' option py_limited_api
# is for libraries that do use some; free-threaded Pythons refuse it.)
class BuildLibrary(BuildExtension):
    def get_ext_filename(self, name: str) -> str:
        return name.replace(".", "/") + ".abi3.so"  # add2/__init__.py opens it by this path


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[extension],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
    options={
        "build_ext": {"force": True},  # without ninja, setuptools notices no edit of a header, and no other flag
        "build": {"build_base": "build/wheel" if shipping else "build"},
    },
)
