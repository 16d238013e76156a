"""load(): build what is missing or out of date, load it, and so register torch.ops.add2.

jit.py, setup.py, cmake.py and nvrtc.py say how each build is made; cache.py knows what was built before.
"""

import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from . import cache, cmake, commands, jit, setup, symptoms, toolchain, workarounds
from .cache import ROOT, Place
from .toolchain import BuildError

COMPILERS = ("jit", "setup", "cmake", "nvrtc")
BINDINGS = ("dispatcher", "pybind11")


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
        BuildError: a tool is missing, or a compilation failed.
    """
    if compiler not in COMPILERS or binding not in BINDINGS:
        raise ValueError(f"there is no build {compiler!r} with binding {binding!r}")
    toolchain.check_platform()
    if binding == "pybind11" and compiler in ("cmake", "nvrtc"):
        raise BuildError(f"The {compiler} build has no pybind11 binding; use jit or setup.")
    start = time.perf_counter()
    if compiler == "nvrtc":
        _compile_by_nvrtc()
        seconds = time.perf_counter() - start
        return Build(compiler, binding, None, seconds, cached=False, cold_seconds=seconds)
    where = _place(compiler, binding)
    stamp, built = None if rebuild else cache.current(where), False
    if stamp is None:
        if (compiler, binding) == ("jit", "dispatcher") and hasattr(torch.ops.add2, "add2"):
            raise BuildError(
                "A build of add2 is loaded, and torch's jit build loads what it builds; use another process."
            )
        toolchain.check(ROOT, where.folder)
        try:
            with cache.locked(where.folder) as lock:
                stamp = None if rebuild else cache.current(where)  # by the process that we have waited for
                if stamp is None:
                    _build(compiler, binding, where, lock)
                    stamp, built = cache.current(where), True
        except OSError as error:
            what = f"{error.filename or 'the build'}: {error.strerror}"
            raise BuildError("\n".join(filter(None, [what, symptoms.explain(what)]))) from error
    if stamp is None:
        raise BuildError("The library was removed at once, by `clean` or another build; start again.")
    return Build(compiler, binding, where.library, time.perf_counter() - start, not built, stamp["seconds"])


def load(compiler: str, binding: str = "dispatcher", rebuild: bool = False, library: Path | None = None) -> Build:
    """build(), then load the library: that registers the operator, or gives pybind11's module as Build.module.

    library: a ready one, which is loaded instead.

    Raises:
        BuildError: as build() does; and if another build has registered the operator, or the library does not load.
    """
    toolchain.check_platform()
    if binding == "dispatcher" and hasattr(torch.ops.add2, "add2"):
        raise BuildError("Another build of add2 is loaded: a process can register an operator only once.")
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
        text = symptoms.whole(error)
        raise BuildError(
            "\n".join(filter(None, [f"{found.library} does not load: {text}", symptoms.explain(text)]))
        ) from error
    if binding == "dispatcher" and not hasattr(torch.ops.add2, "add2"):
        raise BuildError(f"{found.library} has no operator add2: it is not a library of this project's dispatcher.")
    found.seconds = time.perf_counter() - start
    return found


def _compile_by_nvrtc() -> None:
    """For this machine's GPU, and for float32: NVRTC takes 0.1 s for each dtype, which the others' first call pays."""
    if reason := toolchain.lack_for_nvrtc():
        raise BuildError(reason)
    try:
        from . import nvrtc
    except ImportError as error:
        raise BuildError(f"cuda-core does not load: {error}") from error
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    print(f"compiling kernel/add2_kernel.cuh with NVRTC for {arch} ...", file=sys.stderr)
    try:
        nvrtc.compile(arch, torch.float32)
    except Exception as error:  # cuda.core's, which has no public name
        raise BuildError(str(error).strip(" \n\0")) from error


def has_cuda_code(library: Path) -> bool:
    """Whether the CUDA kernels are part of a library; they are not where it was built without nvcc."""
    import ctypes

    return hasattr(ctypes.CDLL(str(library)), "launch_add2_cuda")


def _place(compiler: str, binding: str) -> Place:
    with_cuda = toolchain.find_nvcc() is not None
    if compiler == "jit":
        key = cache.key(_jit_call(binding)(dict, with_cuda, _gpu_flags()))
    else:
        key = cache.key((setup if compiler == "setup" else cmake).steps(binding, with_cuda), _BUILD_FILES[compiler])
    return cache.place(compiler, binding, key)


_BUILD_FILES = {"setup": "setup.py", "cmake": "CMakeLists.txt"}


def _jit_call(binding: str):
    return jit.add2 if binding == "dispatcher" else jit.add2_pybind


def _gpu_flags() -> list[str]:
    return [] if toolchain.arch_list() else [toolchain.PTX_FOR_ALL]


def _build(compiler: str, binding: str, where: Place, lock: int) -> None:
    """Build from nothing. `lock`: the file descriptor that holds the lock, for children to hold it, too."""
    with_cuda = toolchain.find_nvcc() is not None
    target = (
        f"CUDA for {toolchain.arch_list() or 'sm_75 and later (PTX)'}, and the CPU" if with_cuda else "only the CPU"
    )
    print(f"building add2 with {compiler} ({binding}) for {target} ...", file=sys.stderr)
    start, before = time.perf_counter(), cache.changes()
    where.stamp.unlink(missing_ok=True)
    if compiler == "jit":
        log = _build_jit(binding, where, with_cuda)
    else:
        steps, variables = (setup if compiler == "setup" else cmake).steps(binding, with_cuda)
        if compiler == "cmake":
            toolchain.require("cmake", "Install 3.25 or later: `python3 -m pip install cmake`.")
        log = _run(steps, where.log, lock, variables)
    seconds = time.perf_counter() - start
    if (
        _place(compiler, binding).key != where.key or cache.changes() != before
    ):  # which edit is in the library, the old or the new?
        raise BuildError("A source was edited while add2 was being built; start again.")
    found = commands.from_log(log)
    cache.write_stamp(where, seconds, found)
    for command in found:
        print("  $", commands.fold(command), file=sys.stderr)
    print(f"built {where.library} in {seconds:.1f} s", file=sys.stderr)


def _build_jit(binding: str, where: Place, with_cuda: bool) -> str:
    """In a new folder, since compilers of a builder that was killed may still write into the old one. Returns the
    commands."""
    toolchain.require("ninja", "Install it: `python3 -m pip install ninja`.")
    for left in where.folder.glob("building-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=where.folder) as name, toolchain.in_build_environment():
        from torch.utils import cpp_extension

        folder = Path(name)
        workarounds.apply(folder, where.library.stem)
        try:
            _jit_call(binding)(cpp_extension.load, with_cuda, _gpu_flags(), build_directory=name)
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            log = symptoms.whole(error)
            where.log.write_text(log)
            raise BuildError(commands.explain_failure(log, where.log)) from error
        listing = subprocess.run(["ninja", "-t", "commands"], cwd=folder, capture_output=True, text=True).stdout
        (folder / where.library.name).replace(where.library)
        return listing


def _run(steps: list[list[str]], log: Path, lock: int, variables: dict[str, str]) -> str:
    """Run commands in the project's folder. Returns their output, which also stands in the log."""
    env = toolchain.environment() | variables
    with log.open("w") as output:
        for step in steps:
            output.write(f"$ {shlex.join(step)}\n")
            output.flush()
            streams = {"stdout": output, "stderr": subprocess.STDOUT}
            if subprocess.run(step, cwd=ROOT, env=env, pass_fds=[lock], **streams).returncode:
                raise BuildError(commands.explain_failure(log.read_text(errors="replace"), log))
    return log.read_text(errors="replace")


def _import_module(library: Path) -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location(library.name.split(".")[0], library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
