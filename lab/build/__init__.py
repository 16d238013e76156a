"""load(): build what is missing or out of date, load it, and so register torch.ops.add2.

jit.py, setup.py, cmake.py and nvrtc.py say how each build is made; cache.py knows what was built before.
"""

import importlib.util
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch

from . import cache, jit, toolchain
from .toolchain import Failure

COMPILERS = ("jit", "setup", "cmake", "nvrtc")  # for the operator
NAMES = {"pybind11": ("jit", "pybind11")}  # the fields compiler and binding of the classic binding, a Python module


@dataclass
class Build:
    """A build, and how long it took: to build (build) or to build and load (load)."""

    compiler: str
    binding: str  # "dispatcher" or "pybind11"
    library: Path | None  # None: nvrtc leaves nothing on disk
    seconds: float = 0.0
    cached: bool = True
    cold_seconds: float = 0.0  # the time of this library's build from nothing
    commands: list[str] = field(default_factory=list)
    module: ModuleType | None = None  # pybind11's Python module


def build(compiler: str, rebuild: bool = False) -> Build:
    """Build add2 if that is needed, with progress on stderr.

    Args:
        compiler: one of COMPILERS, for the operator torch.ops.add2; or "pybind11", jit's build of the classic binding.
        rebuild: build from nothing even if it is not needed.

    Raises:
        Failure: a tool is missing, or a compilation failed.
    """
    if compiler not in (*COMPILERS, *NAMES):
        raise ValueError(f"there is no build {compiler!r}")
    toolchain.check_platform()
    start = time.perf_counter()
    if compiler == "nvrtc":
        from . import nvrtc

        nvrtc.build()
        seconds = time.perf_counter() - start
        return Build("nvrtc", "dispatcher", None, seconds, cached=False, cold_seconds=seconds)
    try:
        found = None if rebuild else last(compiler)
        if not found:
            if compiler == "jit" and hasattr(torch.ops.add2, "add2"):
                loaded = "A build of add2 is loaded, and torch's jit build loads what it builds"
                raise Failure(f"{loaded}; use another process.")
            toolchain.check(compiler, cache.ROOT, cache.folder())
            with cache.locked() as folder:  # the process that we have waited for may have built it
                found = (None if rebuild else last(compiler)) or _build(compiler, folder)
        if compiler in cache.COPIES:
            found.library = cache.copy(found.library, cache.COPIES[compiler])
    except OSError as error:
        from . import symptoms

        raise symptoms.with_cure(f"{error.filename or 'the build'}: {error.strerror}") from error
    found.seconds = time.perf_counter() - start
    return found


def load(compiler: str, rebuild: bool = False, library: Path | None = None) -> Build:
    """build(), then load the library: that registers the operator, or gives pybind11's module as Build.module.

    library: a ready one, which is loaded instead.

    Raises:
        Failure: as build() does; and if another build has registered the operator, or the library does not load.
    """
    toolchain.check_platform()
    registers = compiler != "pybind11"
    if registers and hasattr(torch.ops.add2, "add2"):
        raise Failure("Another build of add2 is loaded: a process can register an operator only once.")
    start = time.perf_counter()
    found = Build("library", "dispatcher", library) if library else build(compiler, rebuild)
    try:
        if found.library is None:
            from kernel import add2_nvrtc

            add2_nvrtc.register()
        elif not registers:
            spec = importlib.util.spec_from_file_location(found.library.stem, found.library)
            found.module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(found.module)
        elif not hasattr(torch.ops.add2, "add2"):  # jit's load() has done it, if it has just built
            torch.ops.load_library(found.library)
    except (OSError, ImportError, RuntimeError) as error:
        from . import symptoms

        raise symptoms.with_cure(f"{found.library} does not load: {symptoms.whole(error)}") from error
    if registers and not hasattr(torch.ops.add2, "add2"):
        raise Failure(f"{found.library} has no operator add2: it is not a library of this project's dispatcher.")
    found.seconds = time.perf_counter() - start
    return found


def has_cuda_code(library: Path) -> bool:
    """Whether the CUDA kernels are part of a library; they are not where it was built without nvcc."""
    import ctypes

    return hasattr(ctypes.CDLL(str(library)), "launch_add2_cuda")


def last(compiler: str) -> Build | None:
    """The finished build of the sources and the machine as they are."""
    found = cache.find(cache.place(compiler, _maker(compiler).recipe(compiler)))
    return found and Build(*NAMES.get(compiler, (compiler, "dispatcher")), **found)


def fold(command: str) -> str:
    """A command for reading: a run of include folders becomes one word."""
    folders = r"((-I|-isystem[= ]?)\s*('[^']*'|\"[^\"]*\"|\S+)\s*){2,}"
    return re.sub(folders, lambda run: f"-I...({len(re.findall('-I|-isystem', run[0]))} folders) ", command)


def _maker(compiler: str) -> ModuleType:
    """The module that makes a build."""
    if compiler in jit.CALLS:
        return jit
    from . import commands

    return commands


def _build(compiler: str, folder: Path) -> Build:
    """Build from nothing."""
    start, before, maker = time.perf_counter(), cache.changes(), _maker(compiler)
    place = cache.place(compiler, maker.recipe(compiler))  # after changes(): an edit from now on is noticed
    gpus = toolchain.arch_list() or "sm_75 and later (PTX)"
    target = f"CUDA for {gpus}, and the CPU" if toolchain.find_nvcc() else "only the CPU"
    print(f"building add2 with {compiler} for {target} ...", file=sys.stderr)
    try:
        library, commands = maker.build(compiler, folder)
    except (RuntimeError, ValueError, OSError, ImportError) as error:
        from . import symptoms

        raise symptoms.failure(error, cache.folder() / f"add2-{compiler}.log") from error
    if cache.changes() != before:  # which edit is in the library, the old or the new?
        raise Failure("A source was edited while add2 was being built; start again.")
    seconds = time.perf_counter() - start
    for command in commands:
        print("  $", fold(command), file=sys.stderr)
    print(f"built {place / library.name} in {seconds:.1f} s", file=sys.stderr)
    cache.keep(place, library, seconds, commands)
    return Build(*NAMES.get(compiler, (compiler, "dispatcher")), cached=False, **cache.find(place))
