"""load(): build what is missing or out of date, load it, and so register torch.ops.add2.

jit.py, setup.py, cmake.py and nvrtc.py say how each build is made; cache.py knows what was built before.
"""

import importlib.machinery
import importlib.util
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from . import cache, toolchain
from .cache import ROOT
from .toolchain import Failure

COMPILERS = ("jit", "setup", "cmake", "nvrtc")
BINDINGS = ("dispatcher", "pybind11")
COPIES = {"setup": ROOT / "add2", "cmake": ROOT / "build"}  # where these builds also leave their library


@dataclass
class Build:
    """A build, and how long it took: to build (build) or to build and load (load)."""

    compiler: str
    binding: str
    library: Path | None  # None: nvrtc leaves nothing on disk
    seconds: float
    cached: bool
    cold_seconds: float  # the time of this library's build from nothing
    module: ModuleType | None = None  # pybind11's Python module


def build(compiler: str, binding: str = "dispatcher", rebuild: bool = False) -> Build:
    """Build add2 if that is needed, with progress on stderr.

    Args:
        compiler: "jit", "setup", "cmake" or "nvrtc".
        binding: "dispatcher", the operator torch.ops.add2; or "pybind11" (jit and setup), the classic Python module.
        rebuild: build from nothing even if it is not needed.

    Raises:
        Failure: a tool is missing, or a compilation failed.
    """
    if compiler not in COMPILERS or binding not in BINDINGS:
        raise ValueError(f"there is no build {compiler!r} with binding {binding!r}")
    toolchain.check_platform()
    if binding == "pybind11" and compiler in ("cmake", "nvrtc"):
        raise Failure(f"The {compiler} build has no pybind11 binding; use jit or setup.")
    start = time.perf_counter()
    if compiler == "nvrtc":
        if reason := toolchain.lack_for_nvrtc():
            raise Failure(reason)
        from . import nvrtc

        nvrtc.build()
        seconds = time.perf_counter() - start
        return Build(compiler, binding, None, seconds, cached=False, cold_seconds=seconds)
    found = None if rebuild else last(compiler, binding)
    cached = found is not None
    try:
        if not cached:
            if (compiler, binding) == ("jit", "dispatcher") and hasattr(torch.ops.add2, "add2"):
                loaded = "A build of add2 is loaded, and torch's jit build loads what it builds"
                raise Failure(f"{loaded}; use another process.")
            toolchain.check(compiler, ROOT, cache.folder())
            with cache.locked():
                found = None if rebuild else last(compiler, binding)  # by the process that we have waited for
                cached = found is not None
                found = found or _build(compiler, binding)
        library = found["library"]
        if compiler in COPIES:
            library = cache.copy_to(COPIES[compiler], library)
    except OSError as error:
        from . import symptoms

        raise symptoms.with_cure(f"{error.filename or 'the build'}: {error.strerror}") from error
    return Build(compiler, binding, library, time.perf_counter() - start, cached, found["seconds"])


def load(compiler: str, binding: str = "dispatcher", rebuild: bool = False, library: Path | None = None) -> Build:
    """build(), then load the library: that registers the operator, or gives pybind11's module as Build.module.

    library: a ready one, which is loaded instead.

    Raises:
        Failure: as build() does; and if another build has registered the operator, or the library does not load.
    """
    toolchain.check_platform()
    if binding == "dispatcher" and hasattr(torch.ops.add2, "add2"):
        raise Failure("Another build of add2 is loaded: a process can register an operator only once.")
    start = time.perf_counter()
    ready = library and Build("library", binding, library, 0.0, cached=True, cold_seconds=0.0)
    found = ready or build(compiler, binding, rebuild)
    try:
        if found.compiler == "nvrtc":
            from . import nvrtc

            nvrtc.register()
        elif binding == "pybind11":
            found.module = _import_module(found.library)
        elif not hasattr(torch.ops.add2, "add2"):  # jit's load() has done it, if it has just built
            torch.ops.load_library(found.library)
    except (OSError, ImportError, RuntimeError) as error:
        from . import symptoms

        raise symptoms.with_cure(f"{found.library} does not load: {symptoms.whole(error)}") from error
    if binding == "dispatcher" and not hasattr(torch.ops.add2, "add2"):
        raise Failure(f"{found.library} has no operator add2: it is not a library of this project's dispatcher.")
    found.seconds = time.perf_counter() - start
    return found


def has_cuda_code(library: Path) -> bool:
    """Whether the CUDA kernels are part of a library; they are not where it was built without nvcc."""
    import ctypes

    return hasattr(ctypes.CDLL(str(library)), "launch_add2_cuda")


def last(compiler: str, binding: str) -> dict | None:
    """The finished build of the sources and the machine as they are, in cache.find()'s words."""
    return cache.find(cache.place(binding, (compiler, _module(compiler).recipe(binding))))


def fold(command: str) -> str:
    """A command for reading: a run of include folders becomes one word."""
    folders = r"((-I|-isystem[= ]?)\s*('[^']*'|\"[^\"]*\"|\S+)\s*){2,}"
    return re.sub(folders, lambda run: f"-I...({len(re.findall('-I|-isystem', run[0]))} folders) ", command)


def _module(compiler: str) -> ModuleType:
    """jit.py, setup.py or cmake.py."""
    return importlib.import_module(f".{compiler}", __name__)


def _build(compiler: str, binding: str) -> dict:
    """Build from nothing."""
    start, before, recipe = time.perf_counter(), cache.changes(), _module(compiler).recipe(binding)
    place = cache.place(binding, (compiler, recipe))  # after changes(): an edit from now on is noticed
    gpus = toolchain.arch_list() or "sm_75 and later (PTX)"
    target = f"CUDA for {gpus}, and the CPU" if toolchain.find_nvcc() else "only the CPU"
    print(f"building add2 with {compiler} ({binding}) for {target} ...", file=sys.stderr)
    with cache.temporary() as folder:
        library, commands = _module(compiler).build(folder, binding, cache.folder() / f"add2-{compiler}.log")
        if cache.changes() != before:  # which edit is in the library, the old or the new?
            raise Failure("A source was edited while add2 was being built; start again.")
        seconds = time.perf_counter() - start
        cache.keep(library, place, seconds, commands, folder)
    for command in commands:
        print("  $", fold(command), file=sys.stderr)
    print(f"built {place / library.name} in {seconds:.1f} s", file=sys.stderr)
    return {"library": place / library.name, "seconds": seconds}


def _import_module(library: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(library.name.split(".")[0], str(library))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module
