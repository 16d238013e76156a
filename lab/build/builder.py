"""Three ways to build the same operator: jit(), setup(), cmake(). Each is complete in itself.

Start at load(): it builds what is missing or out of date, loads it, and registers torch.ops.add2.
"""

import os
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

from . import cache, commands, symptoms, toolchain
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
        cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]
        toolchain.provide_libcudart(folder)
    # As torch's -I flags are quoted but its -L flags are not, a space in a path would break the link.
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
        + (["-L.", "-lcudart_static", "-lrt", "-ldl", "-lpthread"] if with_cuda else []),
        build_directory=str(folder),
        with_cuda=with_cuda,
        is_python_module=binding == "pybind11",
    )
    return folder / f"{name}.so"


def setup(log: Path, binding: str = "dispatcher", lock: int | None = None) -> None:
    """setuptools, in place: setup.py leaves add2/_C.abi3.so. Nothing is installed; that is the user's `pip install`."""
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    command += ["--force"]  # setuptools knows no headers; ninja does
    _run([command], log, lock, ADD2_BINDING=binding, ADD2_WITH_CUDA="1" if toolchain.find_nvcc() else "0")


def cmake(log: Path, lock: int | None = None, fresh: bool = True) -> None:
    """CMake: CMakeLists.txt leaves build/libadd2.so. fresh: nothing of a build of another torch or compiler is used."""
    program = toolchain.require("cmake", "Install 3.25 or later: `python3 -m pip install cmake`.")
    configure = [program, "-S", ".", "-B", "build", *(["--fresh"] if fresh else [])]
    configure += [f"-DPython3_EXECUTABLE={sys.executable}", f"-DTORCH_DIR={Path(torch.__file__).parent}"]
    if shutil.which("ninja", path=toolchain.tool_path()):
        configure += ["-G", "Ninja"]
    if nvcc := toolchain.find_nvcc():
        archs = toolchain.cmake_architectures(toolchain.arch_list())
        configure += ["-DADD2_WITH_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCMAKE_CUDA_ARCHITECTURES={archs}"]
    else:
        configure += ["-DADD2_WITH_CUDA=OFF"]
    jobs = os.environ.get("MAX_JOBS") or str((os.cpu_count() or 1) + 2)  # ninja's own default; make's would be one
    _run([configure, [program, "--build", "build", "--verbose", "--parallel", jobs]], log, lock)


def build(compiler: str, binding: str = "dispatcher", rebuild: bool = False) -> Build:
    """Build add2 if that is needed, with progress on stderr.

    Args:
        compiler: "jit", "setup" or "cmake".
        binding: "dispatcher", the operator torch.ops.add2; or "pybind11" (jit and setup), the classic Python module.
        rebuild: build from nothing even if it is not needed.

    Raises:
        BuildError: a tool is missing, or a compilation failed.
    """
    if compiler not in COMPILERS or binding not in BINDINGS:
        raise ValueError(f"there is no build {compiler!r} with binding {binding!r}")
    if binding == "pybind11" and compiler == "cmake":
        raise BuildError("The cmake build has no Python in it, so no pybind11 binding; use jit or setup.")
    start = time.perf_counter()
    where = cache.place(compiler, binding)
    stamp, built = None if rebuild else cache.current(where), False
    if stamp is None:
        try:
            with cache.locked(where.lock) as lock:
                where = cache.place(compiler, binding)  # again: we may have waited, and somebody has edited
                stamp = None if rebuild else cache.current(where)  # built by the process that we have waited for
                if stamp is None:
                    _build(compiler, binding, where, lock, rebuild)
                    stamp, built = cache.current(where), True
        except OSError as error:
            what = f"{error.filename or 'the build'}: {error.strerror}"
            raise BuildError("\n".join(filter(None, [what, symptoms.explain(what)]))) from error
    if stamp is None:
        raise BuildError("What was built has been removed at once, by `clean` or another build; start again.")
    return Build(compiler, binding, where.library, time.perf_counter() - start, not built, stamp["cold_seconds"])


def load(compiler: str, binding: str = "dispatcher", rebuild: bool = False, library: Path | None = None) -> Build:
    """build(), then load the library: that registers the operator, or gives pybind11's module as Build.module.

    library: a ready one, which is loaded instead.

    Raises:
        BuildError: as build() does; and if another build has registered the operator, or the library does not load.
    """
    if binding == "dispatcher" and hasattr(torch.ops.add2, "add2"):
        raise BuildError("Another build of add2 is loaded: a process can register an operator only once.")
    start = time.perf_counter()
    ready = library and Build("library", binding, library, 0.0, cached=True, cold_seconds=0.0)
    found = ready or build(compiler, binding, rebuild)
    try:
        if binding == "pybind11":
            found.module = _import_module(found.library)
        elif not hasattr(torch.ops.add2, "add2"):  # jit's load() has done it, if it has just built
            torch.ops.load_library(found.library)
    except (OSError, ImportError) as error:
        text = symptoms.whole(error)
        verdict = symptoms.explain(text)
        raise BuildError(f"{found.library} does not load: {text}" + (f"\n{verdict}" if verdict else "")) from error
    found.seconds = time.perf_counter() - start
    return found


def has_cuda_code(library: Path) -> bool:
    """Whether the CUDA kernels are part of a library; they are not where it was built without nvcc."""
    import ctypes

    return hasattr(ctypes.CDLL(str(library)), "launch_add2_cuda")


def _build(compiler: str, binding: str, where: cache.Place, lock: int, rebuild: bool) -> None:
    """Build what is not current. `lock`: the file descriptor that holds the lock, for children to hold it, too."""
    toolchain.host_compiler()
    toolchain.check_nvcc()
    _announce(compiler, binding)
    start = time.perf_counter()
    if compiler == "jit":
        listing = _build_jit(binding, where, start)
    else:
        listing = _build_in_place(compiler, binding, where, lock, rebuild, start)
    for command in listing:
        print("  $", commands.fold(command), file=sys.stderr)
    print(f"built {where.library} in {time.perf_counter() - start:.1f} s", file=sys.stderr)


def _build_jit(binding: str, where: cache.Place, start: float) -> list[str]:
    """In a folder that gets its name when all in it is finished. Returns the commands that ran."""
    toolchain.require("ninja", "Install it: `python3 -m pip install ninja`.")
    folder = where.library.parent
    for left in folder.parent.glob(f"{folder.name}.unfinished-*"):  # of builders that were killed
        shutil.rmtree(left, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.unfinished-", dir=folder.parent))
    with toolchain.in_build_environment():
        try:
            jit(unfinished, binding)
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            log = symptoms.whole(error)
            where.log.write_text(log)
            raise BuildError(commands.explain_failure(log, where.log)) from error
        listing = subprocess.run(["ninja", "-t", "commands"], cwd=unfinished, capture_output=True, text=True)
    found = commands.from_log(listing.stdout)
    seconds = time.perf_counter() - start
    _check_unedited("jit", binding, where)
    cache.write_stamp(unfinished / where.stamp.name, unfinished / where.library.name, where.key, seconds, found)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return found


def _build_in_place(
    compiler: str, binding: str, where: cache.Place, lock: int, rebuild: bool, start: float
) -> list[str]:
    """setup or cmake, in the project's folder. After an edit only what depends on it is compiled: both tools keep a
    list of the headers of each file. Objects of an unfinished build, or of another torch, are not trusted."""
    places = {name: cache.place(compiler, name) for name in (BINDINGS if compiler == "setup" else ["dispatcher"])}
    before = {name: cache.finished(place) for name, place in places.items()}
    mine, operator = before[binding], before["dispatcher"]
    usable = [stamp for stamp in (mine, operator) if stamp and stamp["surroundings"] == cache.surroundings()]
    reusable = bool(usable) and not rebuild
    if not reusable:
        for folder in cache.objects(compiler):
            shutil.rmtree(folder)
    for place in places.values():  # they share their objects: until this build ends, no stamp vouches for those
        place.stamp.unlink(missing_ok=True)
    if compiler == "setup":
        setup(where.log, binding, lock)
    else:
        cmake(where.log, lock, fresh=not reusable)
    _check_unedited(compiler, binding, where)
    found = commands.from_log(where.log.read_text())
    if reusable and mine:
        found = commands.merge(mine["commands"], found)
    cold_seconds = mine["cold_seconds"] if reusable and mine else time.perf_counter() - start
    # setup.py has built both again: the operator's library is as good as before, and newer than its stamp says.
    if binding == "pybind11" and operator and operator["key"] == where.key:
        other = places["dispatcher"]
        cache.write_stamp(other.stamp, other.library, other.key, operator["cold_seconds"], operator["commands"])
    cache.write_stamp(where.stamp, where.library, where.key, cold_seconds, found)
    return found


def _check_unedited(compiler: str, binding: str, where: cache.Place) -> None:
    """A file that was saved while it was being compiled may be in the library, or not: the key would not tell."""
    if cache.place(compiler, binding).key != where.key:
        raise BuildError("A source was edited while add2 was being built; start again.")


def _sources(binding: str, with_cuda: bool) -> list[str]:
    wrapper = "add2.cpp" if binding == "dispatcher" else "add2_pybind.cpp"
    return [wrapper, "add2_cpu.cpp"] + (["add2_kernel.cu"] if with_cuda else [])


def _run(steps: list[list[str]], log: Path, lock: int | None, **variables: str) -> None:
    """Run commands in the project's folder, all their output into a log; BuildError if one fails."""
    env = toolchain.environment() | variables
    with log.open("w") as output:
        for step in steps:
            output.write(f"$ {shlex.join(map(str, step))}\n")
            output.flush()
            streams = {"stdout": output, "stderr": subprocess.STDOUT}
            if subprocess.run(step, cwd=ROOT, env=env, pass_fds=[lock] if lock else [], **streams).returncode:
                raise BuildError(commands.explain_failure(log.read_text(), log))


def _announce(compiler: str, binding: str) -> None:
    nvcc = toolchain.find_nvcc()
    target = f"CUDA for {toolchain.arch_list() or 'sm_75 and later (PTX)'}, and the CPU" if nvcc else "the CPU alone"
    print(f"building add2 with {compiler} ({binding}) for {target} ...", file=sys.stderr)


def _import_module(library: Path) -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location(library.name.split(".")[0], library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
