"""load(): build what is missing or out of date, load it, and so register torch.ops.add2. jit.py, setup.py, cmake.py and
nvrtc.py say how each build is made; cache.py knows what was built before."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from . import cache, jit, toolchain
from .toolchain import Failure

COMPILERS = ("jit", "setup", "cmake", "nvrtc")


@dataclass
class Build:
    """A build, and how long it took: to build (build) or to build and load (load)."""

    compiler: str
    binding: str  # "dispatcher" or "pybind11"
    library: Path | None  # None: nvrtc leaves nothing on disk
    seconds: float = 0.0
    cached: bool = True
    module: ModuleType | None = None  # pybind11's Python module


def build(compiler: str, rebuild: bool = False) -> Build:
    """Build add2 if that is needed, or rebuild is true, with progress on stderr.
    compiler: one of COMPILERS, for the operator torch.ops.add2; or "pybind11", the classic binding, made by jit.
    Raises Failure if a tool is missing, or a compilation failed."""
    toolchain.check_platform()
    start = time.perf_counter()
    if compiler == "nvrtc":
        from . import nvrtc

        nvrtc.build()
        os.environ["ADD2_NVRTC"] = "1"
        return Build("nvrtc", "dispatcher", None, time.perf_counter() - start, cached=False)
    try:
        library = None if rebuild else last(compiler)
        cached = library is not None
        if not cached:
            if compiler == "jit" and hasattr(torch.ops.add2, "add2"):
                loaded = "A build of add2 is loaded, and torch's jit build loads what it builds"
                raise Failure(f"{loaded}; use another process.")
            toolchain.check(compiler, cache.ROOT, cache.folder())
            with cache.locked() as folder:
                library = None if rebuild else last(compiler)  # by the process that we have waited for
                cached = library is not None
                library = library or _build(compiler, folder)
        if compiler in cache.COPIES:
            library = cache.copy(library, cache.COPIES[compiler])
    except OSError as error:
        from . import symptoms

        raise symptoms.with_cure("The build failed", error) from error
    names = ("jit", "pybind11") if compiler == "pybind11" else (compiler, "dispatcher")
    return Build(*names, library, time.perf_counter() - start, cached)


def load(compiler: str, rebuild: bool = False, library: Path | None = None) -> Build:
    """build(), or take a ready library, and load it: that registers the operator, or sets Build.module (pybind11).

    Raises Failure as build() does; and if another build has registered the operator, or the library does not load.
    """
    toolchain.check_platform()
    registers = compiler != "pybind11"
    if registers and hasattr(torch.ops.add2, "add2"):
        raise Failure("Another build of add2 is loaded: a process can register an operator only once.")
    start = time.perf_counter()
    found = Build("library", "dispatcher", library) if library else build(compiler, rebuild)
    try:
        if found.library is None:
            import add2  # noqa: F401  (ADD2_NVRTC is set)
        elif not registers:
            spec = importlib.util.spec_from_file_location(found.library.stem, found.library)
            found.module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(found.module)
        elif not hasattr(torch.ops.add2, "add2"):  # jit's load() has done it, if it has just built
            torch.ops.load_library(found.library)
    except (OSError, ImportError, RuntimeError) as error:
        from . import symptoms

        raise symptoms.with_cure(f"{found.library} does not load", error) from error
    if registers and not hasattr(torch.ops.add2, "add2"):
        raise Failure(f"{found.library} has no operator add2: it is not a library of this project's dispatcher.")
    found.seconds = time.perf_counter() - start
    return found


def has_cuda_code(library: Path) -> bool:
    """Whether the CUDA kernels are part of a library; they are not where it was built without nvcc."""
    return b"launch_add2_cuda" in library.read_bytes()


def last(compiler: str) -> Path | None:
    """The library of the sources and the machine as they are, if it is built."""
    return cache.find(cache.place(compiler, _recipe(compiler)))


def from_log(log: str) -> list[str]:
    """The compilers' and linkers' commands in the output of ninja, make or setuptools."""
    tools = re.compile(r"(\S*/)?(\S*(c\+\+|g\+\+|clang\+\+)(-\d+)?|nvcc|ccache|sccache) ")
    lines = [re.sub(r"^\[\d+/\d+\] ", "", line) for line in log.splitlines()]  # what ninja puts before a command
    commands = [line.removeprefix(": && ").removesuffix(" && :") for line in lines]
    return [command for command in commands if tools.match(command)]


def fold(command: str) -> str:
    """A command for reading: a run of include folders becomes one word."""
    folders = r"((-I|-isystem[= ]?)\s*('[^']*'|\"[^\"]*\"|\S+)\s*){2,}"
    return re.sub(folders, lambda run: f"-I...({len(re.findall('-I|-isystem', run[0]))} folders) ", command)


def _recipe(compiler: str, folder: object = "FOLDER") -> dict | list[list[str]]:
    """The arguments of jit's call; or the commands of setup.py or cmake.py."""
    if compiler in jit.CALLS:
        return jit.recipe(compiler)
    return importlib.import_module(f".{compiler}", __name__).steps(str(folder))


def _run(steps: list[list[str]]) -> list[str]:
    """Run commands in the project's folder. Returns those of compilers and linkers that ran."""
    said = ""
    for step in steps:
        to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        done = subprocess.run(step, cwd=cache.ROOT, env=toolchain.environment(), **to)
        said += f"$ {shlex.join(step)}\n{done.stdout}"
        if done.returncode:
            raise RuntimeError(said)
    return from_log(said)


def _build(compiler: str, folder: Path) -> Path:
    """Build from nothing. Returns the library, in its place."""
    start, edits = time.perf_counter(), cache.edits()
    place = cache.place(compiler, _recipe(compiler))  # after edits(): one that happens from now on is noticed
    target = f"CUDA for {toolchain.arch_list()}, and the CPU" if toolchain.find_nvcc() else "only the CPU"
    print(f"building add2 with {compiler} for {target} ...", file=sys.stderr)
    try:
        if compiler in jit.CALLS:
            library, commands = jit.build(compiler, folder)
        else:
            library, commands = folder / cache.COPIES[compiler], _run(_recipe(compiler, folder))
    except (RuntimeError, ValueError, OSError, ImportError) as error:
        from . import symptoms

        raise symptoms.failure(error, cache.folder() / f"add2-{compiler}.log") from error
    if cache.edits() != edits:  # which one is in the library, the old or the new?
        raise Failure("A source was edited while add2 was being built; start again.")
    for command in commands:
        print("  $", fold(command), file=sys.stderr)
    kept = cache.keep(place, library, commands)
    print(f"built {kept} in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return kept
