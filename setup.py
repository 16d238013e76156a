"""The setuptools build: leaves add2/_C.abi3.so, and with `pip wheel` one wheel for every Python and torch.

    python3 -m pip install --no-build-isolation -e .    # builds in place; `import add2` works from anywhere
    python3 setup.py build_ext --inplace                # builds only

--no-build-isolation matters: without it pip fetches a second torch of several GB to compile with.

Environment variables:
    ADD2_WITH_CUDA=0         build the CPU part alone (=1: fail where nvcc is missing, instead of leaving CUDA out)
    ADD2_BINDING=pybind11    build kernel/add2_pybind.cpp besides, as add2/_pybind.<this Python>.so
    TORCH_CUDA_ARCH_LIST     the GPUs to compile for, such as "8.0;9.0+PTX"
    MAX_JOBS                 compile at most so many files at once
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# torch takes the folder above nvcc's for the toolkit's. Where nvcc on PATH is a wrapper script, that is not so; nvcc
# itself knows, and tells with --dryrun. And torch does not look for the nvcc of PyPI's nvidia-cuda-nvcc. This comes
# before torch is imported, since torch looks when it is.
if not os.environ.get("CUDA_HOME"):
    packages = [Path(folder, "nvidia") for folder in sys.path]
    found = [str(nvcc) for folder in packages for nvcc in folder.glob("cu[0-9]*/bin/nvcc")] or [shutil.which("nvcc")]
    if found[0]:
        dryrun = subprocess.run([found[0], "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True)
        if top := re.search(r"^#\$ TOP=(.+)$", dryrun.stderr, re.MULTILINE):
            os.environ["CUDA_HOME"] = os.path.realpath(top[1].strip())

import torch
from setuptools import setup
from torch.utils import cpp_extension
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

cpp_extension.logger.setLevel("ERROR")  # not a warning that there is no GPU: that is looked at below

ROOT = Path(__file__).resolve().parent

has_nvcc = torch.version.cuda is not None and CUDA_HOME is not None and Path(CUDA_HOME, "bin/nvcc").exists()
with_cuda = {"0": False, "1": True}.get(os.environ.get("ADD2_WITH_CUDA", ""), has_nvcc)
if with_cuda and not has_nvcc:
    raise SystemExit(
        f"setup.py: ADD2_WITH_CUDA=1, but torch is {torch.__version__} and nvcc was looked for in {CUDA_HOME}/bin. "
        "Install the CUDA toolkit and set CUDA_HOME to its folder."
    )

shipping = "bdist_wheel" in sys.argv  # `pip wheel .`, and `pip install .` without -e
if shipping:  # a wheel holds all that lies in its build folder
    shutil.rmtree("build/wheel", ignore_errors=True)
if torch.version.cuda and not with_cuda:
    print("setup.py: no CUDA code will be built: nvcc was not found, or ADD2_WITH_CUDA=0", file=sys.stderr)

# The operator. TORCH_TARGET_VERSION: use what torch 2.10 had, so that the library runs on 2.10 and every later torch.
# The older the C++, the sooner it is compiled: c++20, which is torch's choice, takes 0.3 s longer for each file.
# -g0: Python adds its own compiler flags to an extension's, -g among them, which makes the library twice as large.
common = ["-O3", "-g0", "-fvisibility=hidden"] + (["-DADD2_WITH_CUDA"] if with_cuda else [])
cxx = [*common, "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
nvcc = ["-std=c++14", "-Xcompiler=-fvisibility=hidden"]
if with_cuda and "TORCH_CUDA_ARCH_LIST" not in os.environ:
    if shipping:  # for other people's GPUs: code for every generation that nvcc knows, and PTX for later ones
        nvcc.append("-arch=all-major")
    elif not torch.cuda.is_available():
        # No GPU to compile for: PTX, which the driver of any GPU since sm_75 finishes compiling when it is loaded.
        nvcc.append("-gencode=arch=compute_75,code=compute_75")

Extension = CUDAExtension if with_cuda else CppExtension
kernels = ["kernel/add2_cpu.cpp"] + (["kernel/add2_kernel.cu"] if with_cuda else [])
operator = Extension(
    name="add2._C",
    sources=["kernel/add2.cpp", *kernels],
    include_dirs=[str(ROOT / "include")],
    extra_compile_args={"cxx": cxx, "nvcc": nvcc},
    py_limited_api=True,  # the library does not use Python at all, so one serves every Python
)
# Extension() lists libtorch_cuda.so and libcudart.so, and a library that names them cannot be loaded where torch has
# no CUDA. libtorch.so stands for all of torch's libraries, whichever there are. The CUDA runtime goes into our own.
operator.libraries = []
operator.extra_link_args = ["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed", "-Wl,--exclude-libs,ALL"]
if with_cuda:
    operator.extra_link_args += ["-lcudart_static", "-lrt", "-ldl", "-lpthread"]
extensions = [operator]

if os.environ.get("ADD2_BINDING") == "pybind11":  # the classic binding: of one Python and one torch
    extensions.append(
        Extension(
            name="add2._pybind",
            sources=["kernel/add2_pybind.cpp", *kernels],
            include_dirs=[str(ROOT / "include")],
            extra_compile_args={"cxx": common, "nvcc": nvcc},
        )
    )

setup(
    ext_modules=extensions,
    cmdclass={"build_ext": BuildExtension},
    options={
        "bdist_wheel": {"py_limited_api": "cp310"},
        "build": {"build_base": "build/wheel" if shipping else "build"},
    },
)
