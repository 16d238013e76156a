"""load(): do what you would type to build add2 (jit, setup, cmake), then load what that left. The tools decide what is
out of date. We add the environment in which they find nvcc (toolchain.py), and one lock for several processes."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from filelock import FileLock  # torch depends on it; the operating system releases it when its holder dies
from torch.utils import cpp_extension

from . import toolchain
from .toolchain import Failure

ROOT = Path(__file__).resolve().parents[1]
COMPILERS = ("jit", "setup", "cmake")

# For shutil.copytree(): what builds, tests and tools have written into the project's folder.
leftovers = shutil.ignore_patterns(
    ".*_cache", ".git", ".venv*", "answers", "build", "dist", "*.so", "*.egg-info", "__pycache__"
)


@dataclass
class Build:
    """A build that is loaded, and the seconds that building and loading took."""

    compiler: str
    library: Path
    seconds: float = 0.0


def load(compiler: str, rebuild: bool = False, library: Path | None = None) -> Build:
    """Build what is out of date, and load it: that registers torch.ops.add2. Failure says what went wrong.

    rebuild: build from nothing, and print the tool's commands on stderr. library: load this file; build nothing.
    """
    if hasattr(torch.ops.add2, "add2"):
        raise Failure("Another build of add2 is loaded: a process can register an operator only once.")
    start = time.perf_counter()
    try:
        found = library.absolute() if library else _build(compiler, rebuild)
        torch.ops.load_library(found)  # once more changes nothing
    except Failure:
        raise
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        words = f"{library or f'The {compiler} build'} failed: {error}\n{error.__cause__ or ''}".strip()
        cure = "Cure: docs/troubleshooting.md lists such messages; `python3 -m lab.doctor` examines the tools."
        if not (library or rebuild):  # a folder that was moved, or a file that a full disk has cut off
            cure += " --rebuild builds from nothing."
        raise Failure(f"{words}\n{cure}") from error
    if not hasattr(torch.ops.add2, "add2"):
        raise Failure(f"{found} has no operator add2: it is not a library of this project.")
    return Build("library" if library else compiler, found, time.perf_counter() - start)


def _build(compiler: str, rebuild: bool) -> Path:
    toolchain.host_compiler()
    if compiler != "setup":  # which also works without ninja
        toolchain.require("cmake" if compiler == "cmake" else "ninja")
    with mock.patch.dict(os.environ, toolchain.environment()):  # the commands read it
        nvcc = toolchain.find_nvcc()
        target = f"CUDA ({toolchain.arch_list()}) and the CPU" if nvcc else "only the CPU"
        print(f"building what is out of date with {compiler} for {target} ...", file=sys.stderr)
        return _jit(rebuild) if compiler == "jit" else _run(compiler, rebuild, nvcc)


def _run(compiler: str, rebuild: bool, nvcc: Path | None) -> Path:
    (ROOT / "build").mkdir(exist_ok=True)
    with FileLock(ROOT / "build" / "add2.lock"):
        for command in _commands(compiler, rebuild, nvcc):
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            output = f"$ {shlex.join(command)}\n{done.stdout}"
            if done.returncode:
                raise RuntimeError(output)
            print(output if rebuild else "", end="", file=sys.stderr)
        library = ROOT / ("add2/_C.abi3.so" if compiler == "setup" else "build/libadd2.so")
        torch.ops.load_library(library)  # before another process builds again
    return library


def _commands(compiler: str, rebuild: bool, nvcc: Path | None) -> list[list[str]]:
    """The commands of the setup and cmake builds. CMake's options name the torch and the GPUs of the other builds."""
    if compiler == "setup":
        return [[sys.executable, "setup.py", *["clean", "--all"] * rebuild, "build_ext", "--inplace"]]
    configure = ["cmake", "-S", ".", "-B", "build", f"-DTORCH_DIR={Path(torch.__file__).parent}"]
    configure += [f"-DADD2_WITH_CUDA={'ON' if nvcc else 'OFF'}", *["--fresh"] * rebuild]
    if nvcc:  # torch knows names such as Hopper; -gencode=arch=compute_80,code=sm_80 is "80-real" in CMake's notation
        flags = " ".join(cpp_extension._get_cuda_arch_flags())
        kinds = {"sm": "real", "compute": "virtual"}
        gpus = [f"{number}-{kinds[kind]}" for kind, number in re.findall(r"code=(sm|compute)_(\w+)", flags)]
        configure += [f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(gpus)}"]
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count())
    return [configure, ["cmake", "--build", "build", "--verbose", "--parallel", jobs, *["--clean-first"] * rebuild]]


def _call_load(with_cuda: bool, *link: str) -> str:
    """torch's load(), called as you would in your own project. Returns the library's path."""
    return cpp_extension.load(
        name="add2",
        # Absolute paths: relative ones work from one working directory only.
        sources=[f"{ROOT}/kernel/add2.cpp", f"{ROOT}/kernel/add2_cpu.cpp"]
        + [f"{ROOT}/kernel/add2_kernel.cu"] * with_cuda,
        extra_include_paths=[f"{ROOT}/include"],
        # c++20, torch's default, compiles slower. The target version: runs on torch 2.10 and later.
        extra_cflags=["-O3", "-fvisibility=hidden", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
        + ["-DADD2_WITH_CUDA"] * with_cuda,
        extra_cuda_cflags=["-std=c++14", "-Xcompiler=-fvisibility=hidden"],
        # libtorch.so loads all of torch's libraries, with CUDA or without; the CUDA runtime goes into ours.
        extra_ldflags=[*link, "-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed"]
        + ["-lcudart_static", "-lrt", "-ldl", "-lpthread"] * with_cuda,
        with_cuda=with_cuda,
        is_python_module=False,  # loading an operator's library registers it
    )


def _jit(rebuild: bool) -> Path:
    with toolchain.torch_load("add2", rebuild) as (folder, nvcc, link):
        library = Path(_call_load(nvcc is not None, *link))
        if rebuild:
            print(subprocess.getoutput(f"ninja -C {shlex.quote(str(folder))} -t commands"), file=sys.stderr)
    return library
