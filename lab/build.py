"""load(): do what you would type to build add2 (jit, setup, cmake, nvrtc), then load what that left.

The tools decide what is out of date: ninja and make compare times, and torch's load() keeps one folder for each name.
We add the environment in which they find nvcc (toolchain.py), one lock for several processes, and a cure below the
tool's own error.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from filelock import FileLock  # torch depends on it; the operating system releases it when its holder dies

from . import toolchain
from .toolchain import Failure, explain

ROOT = Path(__file__).resolve().parents[1]
COMPILERS = ("jit", "setup", "cmake", "nvrtc")

# For shutil.copytree(): what builds, tests and tools have written into the project's folder.
leftovers = shutil.ignore_patterns(".*_cache", ".git", ".venv*", "build", "dist", "*.so", "*.egg-info", "__pycache__")


@dataclass
class Build:
    """A build that is loaded, and the seconds that building and loading took."""

    compiler: str
    binding: str  # "dispatcher" or "pybind11"
    library: Path | None  # None: nvrtc leaves nothing on disk
    seconds: float = 0.0
    module: ModuleType | None = None  # pybind11's Python module


def load(compiler: str, rebuild: bool = False, library: Path | None = None) -> Build:
    """Build what is out of date, and load it: that registers torch.ops.add2.

    compiler: one of COMPILERS; or "pybind11", the classic binding, made by jit, which sets Build.module instead.
    rebuild: build from nothing, and print the tool's commands on stderr. library: load this file; build nothing.
    Raises Failure if a tool is missing, a command fails, the library does not load, or the operator is registered.
    """
    if sys.platform != "linux":
        raise Failure(f"add2 needs Linux, and this is {sys.platform}. On Windows, WSL 2 is a Linux.")
    if compiler != "pybind11" and hasattr(torch.ops.add2, "add2"):
        raise Failure("Another build of add2 is loaded: a process can register an operator only once.")
    start = time.perf_counter()
    try:
        if library:
            torch.ops.load_library(library)
        build = Build("library", "dispatcher", library) if library else _build(compiler, rebuild)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        if isinstance(error, Failure):
            raise
        cause = f"\n{error.__cause__}" if isinstance(error, OSError) and error.__cause__ else ""  # the loader's words
        message = f"{library or f'The {compiler} build'} failed: {error}{cause}"
        raise Failure("\n".join(filter(None, [message.strip(), explain(message)]))) from error
    if not build.module and not hasattr(torch.ops.add2, "add2"):
        raise Failure(f"{build.library} has no operator add2: it is not a library of this project's dispatcher.")
    build.seconds = time.perf_counter() - start
    return build


def has_cuda_code(library: Path) -> bool:
    """Whether the CUDA kernels are part of a library; they are not where it was built without nvcc."""
    return b"launch_add2_cuda" in library.read_bytes()


def _build(compiler: str, rebuild: bool) -> Build:
    if compiler == "nvrtc":
        if reason := toolchain.lack_for_nvrtc():
            raise Failure(reason)
        os.environ["ADD2_NVRTC"] = "1"
        import add2  # noqa: F401  (registers the operator of add2/nvrtc.py)

        return Build("nvrtc", "dispatcher", None)
    toolchain.host_compiler()
    if nvcc := toolchain.find_nvcc():
        toolchain.check_nvcc(nvcc)
    if compiler != "setup":  # which also works without ninja
        toolchain.require("cmake" if compiler == "cmake" else "ninja")
    target = f"CUDA ({toolchain.arch_list()}) and the CPU" if nvcc else "only the CPU"
    print(f"building what is out of date with {compiler} for {target} ...", file=sys.stderr)
    if compiler in ("jit", "pybind11"):
        before = dict(os.environ)
        os.environ.update(toolchain.environment())  # torch's load() reads it
        try:
            return _jit("add2" if compiler == "jit" else "add2_pybind", rebuild)
        finally:
            os.environ.clear()
            os.environ.update(before)
    (ROOT / "build").mkdir(exist_ok=True)
    with FileLock(ROOT / "build" / "add2.lock"):
        for command in commands(compiler, rebuild):
            options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
            done = subprocess.run(command, cwd=ROOT, env=toolchain.environment(), **options)
            output = f"$ {shlex.join(command)}\n{done.stdout}"
            if done.returncode:
                raise RuntimeError(output)
            if rebuild:
                print(output, file=sys.stderr)
        library = ROOT / ("add2/_C.abi3.so" if compiler == "setup" else "build/libadd2.so")
        torch.ops.load_library(library)
    return Build(compiler, "dispatcher", library)


def commands(compiler: str, rebuild: bool = False) -> list[list[str]]:
    """The commands of the setup and cmake builds. CMake's options name the torch and the GPUs of the other builds."""
    if compiler == "setup":
        return [[sys.executable, "setup.py", *["clean", "--all"] * rebuild, "build_ext", "--inplace"]]
    nvcc = toolchain.find_nvcc()
    configure = ["cmake", "-S", ".", "-B", "build", f"-DTORCH_DIR={Path(torch.__file__).parent}"]
    configure += [f"-DADD2_WITH_CUDA={'ON' if nvcc else 'OFF'}", *["--fresh"] * rebuild]
    if nvcc:  # "8.0;9.0+PTX" is "80-real;90" in CMake's notation
        gpus = [gpu.replace(".", "") for gpu in toolchain.arch_list().split(";")]
        gpus = [gpu.removesuffix("+PTX") if gpu.endswith("+PTX") else f"{gpu}-real" for gpu in gpus]
        configure += [f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(gpus)}"]
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count())
    return [configure, ["cmake", "--build", "build", "--verbose", "--parallel", jobs, *["--clean-first"] * rebuild]]


def _call_load(load, name: str, with_cuda: bool) -> str | ModuleType:
    """torch's load(), called as you would in your own project. Returns the library's path, or pybind11's module."""
    is_operator = name == "add2"  # else "add2_pybind"
    # c++20, torch's default, compiles slower. The target version: runs on torch 2.10 and later.
    flags = ["-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] if is_operator else []
    return load(
        name=name,
        # Absolute paths: relative ones work from one working directory only.
        sources=[f"{ROOT}/kernel/{name}.cpp", f"{ROOT}/kernel/add2_cpu.cpp"]
        + [f"{ROOT}/kernel/add2_kernel.cu"] * with_cuda,
        extra_include_paths=[f"{ROOT}/include"],
        extra_cflags=["-O3", "-fvisibility=hidden", *flags] + ["-DADD2_WITH_CUDA"] * with_cuda,
        extra_cuda_cflags=["-std=c++14", "-Xcompiler=-fvisibility=hidden"],
        # libtorch.so loads all of torch's libraries, with CUDA or without; the CUDA runtime goes into ours.
        extra_ldflags=["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed"]
        + ["-lcudart_static", "-lrt", "-ldl", "-lpthread"] * with_cuda,
        with_cuda=with_cuda,
        is_python_module=not is_operator,  # loading an operator's library registers it
    )


def _jit(name: str, rebuild: bool) -> Build:
    from torch.utils import cpp_extension

    # A space in the path of a virtual environment: torch 2.10 to 2.15 quote their -I flags, not their -L flags.
    cpp_extension.TORCH_LIB_PATH = shlex.quote(str(Path(torch.__file__).parent / "lib"))
    home = os.environ.get("CUDA_HOME")
    cpp_extension.CUDA_HOME = home or cpp_extension.CUDA_HOME  # read at import, which may have been long before
    folder = Path(cpp_extension._get_build_directory(name, verbose=False))
    with FileLock(folder.with_name("add2.lock")):
        if rebuild:
            shutil.rmtree(folder)
            folder.mkdir()
        # load() of torch up to 2.13 waits for this file forever, whether a killed build has left it or a later
        # torch, which locks the file and leaves it (https://github.com/pytorch/pytorch/issues/189245).
        (folder / "lock").unlink(missing_ok=True)
        # torch links with -lcudart; nvidia-cuda-runtime of PyPI has libcudart.so.13, but no libcudart.so.
        if home and not list(Path(home).glob("lib*/libcudart.so")):
            (folder / "libcudart.so").unlink(missing_ok=True)
            (folder / "libcudart.so").symlink_to(next(Path(home).glob("lib/libcudart.so.*")))
            os.environ["LIBRARY_PATH"] = f"{folder}:{os.environ.get('LIBRARY_PATH', '')}"
        loaded = _call_load(cpp_extension.load, name, toolchain.find_nvcc() is not None)
        if rebuild:
            print(subprocess.getoutput(f"ninja -C {shlex.quote(str(folder))} -t commands"), file=sys.stderr)
    if name == "add2":
        return Build("jit", "dispatcher", Path(loaded))
    return Build("jit", "pybind11", Path(loaded.__file__), module=loaded)
