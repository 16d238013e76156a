"""The jit build: one call of torch.utils.cpp_extension.load, which runs ninja and loads the library. add2()
is that call, as you would write it in your own project; with an ordinary toolkit it needs nothing else. workarounds.py
has what some machines need, and cache.py keeps the library for the next run."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from . import toolchain
from .cache import ROOT


def add2(load: Callable, with_cuda: bool, **options):
    """Build and load the operator. load: cpp_extension.load; or dict, for the arguments without a build."""
    return load(
        name="add2",
        # Absolute paths: relative ones work from one working directory only.
        sources=[f"{ROOT}/kernel/add2.cpp", f"{ROOT}/kernel/add2_cpu.cpp"]
        + [f"{ROOT}/kernel/add2_kernel.cu"] * with_cuda,
        extra_include_paths=[f"{ROOT}/include"],
        # torch gives no -O, and c++20, which compiles slower. The target version: runs on torch 2.10 and later.
        extra_cflags=["-O3", "-std=c++17", "-fvisibility=hidden", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
        + ["-DADD2_WITH_CUDA"] * with_cuda,
        extra_cuda_cflags=["-std=c++14", "-Xcompiler=-fvisibility=hidden"],
        # The library names only libtorch.so, which stands for all of torch's; the CUDA runtime goes into the library.
        extra_ldflags=["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed"]
        + ["-lcudart_static", "-lrt", "-ldl", "-lpthread"] * with_cuda,
        with_cuda=with_cuda,
        is_python_module=False,  # loading the library registers torch.ops.add2
        **options,
    )


def add2_pybind(load: Callable, with_cuda: bool, **options):
    """The classic binding: load() imports the library as a Python module, and returns it."""
    return load(
        name="add2_pybind",
        sources=[f"{ROOT}/kernel/add2_pybind.cpp", f"{ROOT}/kernel/add2_cpu.cpp"]
        + [f"{ROOT}/kernel/add2_kernel.cu"] * with_cuda,
        extra_include_paths=[f"{ROOT}/include"],
        extra_cflags=["-O3", "-fvisibility=hidden"] + ["-DADD2_WITH_CUDA"] * with_cuda,
        extra_cuda_cflags=["-std=c++14", "-Xcompiler=-fvisibility=hidden"],
        extra_ldflags=["-lcudart_static", "-lrt", "-ldl", "-lpthread"] * with_cuda,
        with_cuda=with_cuda,
        **options,
    )


CALLS = {"jit": add2, "pybind11": add2_pybind}


def recipe(name: str, load: Callable = dict, **options):
    """All that a call gives to load()."""
    return CALLS[name](load, with_cuda=toolchain.find_nvcc() is not None, **options)


def build(name: str, folder: Path) -> tuple[Path, list[str]]:
    """The library, built in a folder, and the commands that ran."""
    before = dict(os.environ)
    try:
        os.environ.update(toolchain.environment())  # which load() reads
        from torch.utils import cpp_extension

        home = os.environ.get("CUDA_HOME")
        odd = home and (home != cpp_extension.CUDA_HOME or not any(Path(home).glob("lib*/libcudart.so")))
        if odd or " " in cpp_extension.TORCH_LIB_PATH:
            from . import workarounds

            workarounds.for_jit(folder)
        recipe(name, cpp_extension.load, build_directory=str(folder))
        commands = subprocess.check_output(["ninja", "-t", "commands"], cwd=folder, text=True).splitlines()
    finally:
        os.environ.clear()
        os.environ.update(before)
    [library] = folder.glob("add2*.so")  # add2.so; the second one that a process builds is called add2_v1.so
    return library, commands
