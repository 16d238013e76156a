"""Three ways to build the same operator: jit(), setup(), cmake(). Each is complete in itself.

    from lab import compilers
    compilers.load("jit")  # builds what is missing or out of date, loads it, registers torch.ops.add2

Start at load(), at the end.
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

from . import cache, commands, toolchain
from .cache import ROOT
from .toolchain import BuildError

COMPILERS = ("jit", "setup", "cmake")
BINDINGS = ("dispatcher", "pybind11")


@dataclass
class Build:
    """What build() and load() return: which library, and what it took to have it built (build) or loaded (load)."""

    compiler: str
    binding: str
    library: Path
    seconds: float
    cached: bool
    cold_seconds: float  # what it took to build it from nothing, when that was done last
    module: ModuleType | None = None  # pybind11's Python module


def jit(folder: Path, binding: str = "dispatcher") -> Path:
    """torch's own just-in-time build: ninja runs c++, nvcc and the linker in `folder`. Returns the library.

    A library of the dispatcher is no Python module (is_python_module=False): loading it registers the operator.
    """
    from torch.utils import cpp_extension

    with_cuda = toolchain.find_nvcc() is not None
    name = "add2" if binding == "dispatcher" else "add2_pybind"
    flags = ["-DADD2_WITH_CUDA"] if with_cuda else []
    if binding == "dispatcher":
        # Runs on torch 2.10 and later. The older the C++, the sooner it is compiled: c++20, torch's own, costs 0.3 s.
        flags += ["-DTORCH_TARGET_VERSION=0x020a000000000000", "-std=c++17"]
    if with_cuda:
        # As torch's -I flags are quoted but its -L flags are not, a space in a path would break the link.
        cpp_extension.CUDA_HOME = shlex.quote(os.environ["CUDA_HOME"])
    cpp_extension.TORCH_LIB_PATH = shlex.quote(str(Path(torch.__file__).parent / "lib"))
    # torch counts the loads of a name in a process, and would call the second one add2_v1.
    cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(name, None)
    cpp_extension.load(
        name=name,
        sources=[str(ROOT / "kernel" / source) for source in _sources(binding, with_cuda)],
        extra_include_paths=[str(ROOT / "include")],
        extra_cflags=["-O3", "-fvisibility=hidden", *flags],  # without -O, c++ does not optimize at all
        extra_cuda_cflags=["-std=c++14", "-Xcompiler=-fvisibility=hidden"]
        + ([] if "TORCH_CUDA_ARCH_LIST" in os.environ else [toolchain.PTX_FOR_ALL]),
        # The CUDA runtime goes into the library; of torch's libraries only those that are used are named in it,
        # beside libtorch.so, which stands for them all.
        extra_ldflags=["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed"]
        + (["-lcudart_static", "-lrt", "-ldl", "-lpthread"] if with_cuda else []),
        build_directory=str(folder),
        with_cuda=with_cuda,
        is_python_module=binding == "pybind11",
    )
    return folder / f"{name}.so"


def setup(log: Path, binding: str = "dispatcher") -> None:
    """setuptools, in place: setup.py leaves add2/_C.abi3.so. Nothing is installed; that is the user's `pip install`."""
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    _run([command], log, ADD2_BINDING=binding, ADD2_WITH_CUDA="1" if toolchain.find_nvcc() else "0")


def cmake(log: Path) -> None:
    """CMake: CMakeLists.txt leaves build/libadd2.so. --fresh: a cache of another torch or compiler is not reused."""
    program = toolchain.require("cmake", "Install 3.25 or later: `python3 -m pip install cmake`.")
    configure = [program, "--fresh", "-S", ".", "-B", "build", f"-DPython3_EXECUTABLE={sys.executable}"]
    configure += [f"-DTORCH_DIR={Path(torch.__file__).parent}"]
    if shutil.which("ninja", path=toolchain.tool_path()):
        configure += ["-G", "Ninja"]
    if nvcc := toolchain.find_nvcc():
        archs = toolchain.cmake_architectures(toolchain.arch_list())
        configure += ["-DADD2_WITH_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCMAKE_CUDA_ARCHITECTURES={archs}"]
    else:
        configure += ["-DADD2_WITH_CUDA=OFF"]
    _run([configure, [program, "--build", "build", "--verbose", "--parallel", str(os.cpu_count())]], log)


def build(compiler: str, binding: str = "dispatcher") -> Build:
    """Build add2 if that is needed, with progress on stderr.

    Args:
        compiler: "jit", "setup" or "cmake".
        binding: "dispatcher", the operator torch.ops.add2; or "pybind11" (jit and setup), the classic Python module.

    Raises:
        BuildError: a tool is missing, or a compilation failed.
    """
    if compiler not in COMPILERS or binding not in BINDINGS:
        raise ValueError(f"there is no build {compiler!r} with binding {binding!r}")
    if binding == "pybind11" and compiler == "cmake":
        raise BuildError("The cmake build has no Python in it, so no pybind11 binding; use jit or setup.")
    start = time.perf_counter()
    library, cached, stamp = (_jit_cached if compiler == "jit" else _built_in_place)(compiler, binding)
    return Build(compiler, binding, library, time.perf_counter() - start, cached, cache.cold_seconds(stamp))


def load(compiler: str, binding: str = "dispatcher") -> Build:
    """build(), then load the library: that registers the operator, or gives pybind11's module as Build.module.

    Raises:
        BuildError: as build() does; and if another build has registered the operator, or the library does not load.
    """
    if binding == "dispatcher" and hasattr(torch.ops.add2, "add2"):
        raise BuildError("Another build of add2 is loaded: a process can register an operator only once.")
    start = time.perf_counter()
    found = build(compiler, binding)
    if binding == "pybind11":
        found.module = _import_module(found.library)
    elif not hasattr(torch.ops.add2, "add2"):  # jit's load() has done it, if it has just built
        try:
            torch.ops.load_library(found.library)
        except OSError as error:
            raise BuildError(f"{found.library} does not load: {error}") from error
    found.seconds = time.perf_counter() - start
    return found


def has_cuda_code(library: Path) -> bool:
    """Whether the CUDA kernels are part of a library; they are not where it was built without nvcc."""
    import ctypes

    return hasattr(ctypes.CDLL(str(library)), "launch_add2_cuda")


def _jit_cached(compiler: str, binding: str) -> tuple[Path, bool, Path]:
    """One folder for each fingerprint, so that a change of the sources and a change back find their library again.

    Returns the library, whether it was there already, and its stamp.
    """
    folder = cache.jit_folder() / f"add2-{binding}-{cache.fingerprint(compiler, binding, sys.version)}"
    library = folder / ("add2.so" if binding == "dispatcher" else "add2_pybind.so")
    stamp = folder / "stamp.json"
    if folder.exists():  # it got its name when it was finished
        return library, True, stamp
    with cache.locked(folder.with_suffix(".lock")):
        if folder.exists():  # built by the process that we have waited for
            return library, True, stamp
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        toolchain.host_compiler()
        toolchain.require("ninja", "Install it: `python3 -m pip install ninja`.")
        _announce(compiler, binding)
        start = time.perf_counter()
        with toolchain.in_build_environment():
            try:
                jit(unfinished, binding)
            except (RuntimeError, OSError, ImportError) as error:
                log = folder.with_suffix(".log")
                log.write_text(str(error))
                raise BuildError(commands.explain_failure(str(error), log)) from error
            listing = subprocess.run(["ninja", "-t", "commands"], cwd=unfinished, capture_output=True, text=True)
        cache.write_stamp(unfinished / stamp.name, unfinished / library.name, folder.name, time.perf_counter() - start)
        unfinished.rename(folder)
        _report(listing.stdout, start, library)
    return library, False, stamp


def _built_in_place(compiler: str, binding: str) -> tuple[Path, bool, Path]:
    """setup and cmake leave their library in the project's folder; a stamp in build/ says what it was built from."""
    build = ROOT / "build"
    stamps = {name: build / f"{compiler}-{name}.json" for name in BINDINGS}
    key = cache.fingerprint(compiler)
    library = _in_place_library(compiler, binding)
    if cache.is_current(stamps[binding], library, key):
        return library, True, stamps[binding]
    with cache.locked(build / "lock"):
        if cache.is_current(stamps[binding], library, key):
            return library, True, stamps[binding]
        stamps[binding].unlink(missing_ok=True)
        toolchain.host_compiler()
        _announce(compiler, binding)
        start = time.perf_counter()
        log = build / f"{compiler}-{binding}.log"
        if compiler == "setup":
            operator = _in_place_library(compiler, "dispatcher")
            built_before = cache.is_current(stamps["dispatcher"], operator, key)
            if binding == "dispatcher":  # from nothing, as the other builds; pybind11's finds the kernels compiled
                for objects in build.glob("temp.*"):
                    shutil.rmtree(objects)
            setup(log, binding)
            if built_before:  # setup.py has touched it
                cache.write_stamp(stamps["dispatcher"], operator, key, cache.cold_seconds(stamps["dispatcher"]))
        else:
            cmake(log)
        cache.write_stamp(stamps[binding], library, key, time.perf_counter() - start)
        _report(log.read_text(), start, library)
    return library, False, stamps[binding]


def _in_place_library(compiler: str, binding: str) -> Path:
    if compiler == "cmake":
        return ROOT / "build" / "libadd2.so"
    if binding == "dispatcher":
        return ROOT / "add2" / "_C.abi3.so"
    import sysconfig

    return ROOT / "add2" / f"_pybind{sysconfig.get_config_var('EXT_SUFFIX')}"


def _sources(binding: str, with_cuda: bool) -> list[str]:
    wrapper = "add2.cpp" if binding == "dispatcher" else "add2_pybind.cpp"
    return [wrapper, "add2_cpu.cpp"] + (["add2_kernel.cu"] if with_cuda else [])


def _run(steps: list[list[str]], log: Path, **variables: str) -> None:
    """Run commands in the project's folder, all their output into a log; BuildError if one fails."""
    env = toolchain.environment() | variables
    with log.open("w") as output:
        for step in steps:
            output.write(f"$ {shlex.join(map(str, step))}\n")
            output.flush()
            if subprocess.run(step, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT).returncode:
                raise BuildError(commands.explain_failure(log.read_text(), log))


def _announce(compiler: str, binding: str) -> None:
    nvcc = toolchain.find_nvcc()
    target = f"CUDA for {toolchain.arch_list() or 'sm_75 and later (PTX)'}, and the CPU" if nvcc else "the CPU alone"
    print(f"building add2 with {compiler} ({binding}) for {target} ...", file=sys.stderr)


def _report(log: str, start: float, library: Path) -> None:
    for command in commands.from_log(log):
        print("  $", commands.fold(command), file=sys.stderr)
    print(f"built {library} in {time.perf_counter() - start:.1f} s", file=sys.stderr)


def _import_module(library: Path) -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location(library.name.split(".")[0], library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
