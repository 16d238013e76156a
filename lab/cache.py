"""What was built before, where it lies, and from what: a build is used again only if nothing that went into it changed.

Each finished build leaves a stamp, a JSON file with the fingerprint of its inputs. It is written last and in one
piece, so a build that fails or is killed leaves none, and what it did leave is never taken for a good library.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from . import toolchain

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [
    "include/*.h",
    "kernel/*.h",
    "kernel/*.cpp",
    "kernel/*.cu",
    "kernel/*.cuh",
    "setup.py",
    "CMakeLists.txt",
    "lab/compilers.py",
    "lab/toolchain.py",
]

# What a copy of the project leaves out: what builds, tests and tools have left in its folder.
LEFTOVERS = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "build", "dist", "*.so", "*.egg-info", "__pycache__"
)

_VARIABLES = ("CXX", "CC", "CXXFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
_VARIABLES += ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CUDAFLAGS", "CUDAHOSTCXX", "CMAKE_BUILD_TYPE")


def surroundings() -> str:
    """A short name for torch, the toolchain, its flags and the GPUs: all that decides on a build beside the sources.

    No program is started for it, so that a warm start takes milliseconds.
    """
    nvcc, path = toolchain.find_nvcc(), toolchain.tool_path()
    named = [*shlex.split(os.environ.get("CXX") or "c++"), "ninja"]  # CXX may be "ccache g++"
    tools = [nvcc, *(shutil.which(name, path=path) for name in named)]
    compilers: list[object] = [(os.path.realpath(tool), os.stat(tool).st_mtime_ns) for tool in tools if tool]
    compilers.append(os.path.realpath("/usr/local/cuda"))  # where an nvcc that is a wrapper script often leads
    its_torch = [torch.__file__, torch.__version__, torch.version.git_version, torch.version.cuda]
    flags = [os.environ.get(name) for name in _VARIABLES]
    archs = toolchain.arch_list() if nvcc else None
    return hashlib.sha256(repr([its_torch, str(ROOT), compilers, flags, archs]).encode()).hexdigest()[:16]


def fingerprint(*parts: object) -> str:
    """A short name for all that decides what a build's result is: surroundings, sources, and the given parts."""
    digest = hashlib.sha256(repr([surroundings(), parts]).encode())
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Place:
    """Where one build lies. key: the fingerprint of what it is, or would be, built from."""

    library: Path
    stamp: Path
    lock: Path
    log: Path
    key: str


def place(compiler: str, binding: str) -> Place:
    """jit has a folder for each key, so that a change of the sources and a change back find their library again; setup
    and cmake leave one library in the project's folder."""
    python = sysconfig.get_config_var("EXT_SUFFIX")  # only the library of pybind11 depends on it
    if compiler == "jit":
        key = fingerprint(compiler, binding, python if binding == "pybind11" else "")
        folder = jit_folder() / f"add2-{binding}-{key}"
        library = folder / ("add2.so" if binding == "dispatcher" else "add2_pybind.so")
        return Place(library, folder / "stamp.json", folder.with_suffix(".lock"), folder.with_suffix(".log"), key)
    build = ROOT / "build"
    library = build / "libadd2.so"
    if compiler == "setup":
        library = ROOT / "add2" / ("_C.abi3.so" if binding == "dispatcher" else f"_pybind{python}")
    name = f"{compiler}-{binding}"
    return Place(library, build / f"{name}.json", build / "lock", build / f"{name}.log", fingerprint(compiler))


def jit_folder() -> Path:
    """Where torch keeps what it compiles just in time: TORCH_EXTENSIONS_DIR, or a folder of the user's cache."""
    if given := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch_extensions")


def stamps(compiler: str, binding: str) -> list[Path]:
    """Those of all finished builds, the newest last."""
    pattern = f"add2-{binding}-{'[0-9a-f]' * 16}/stamp.json" if compiler == "jit" else f"{compiler}-{binding}.json"
    folder = jit_folder() if compiler == "jit" else ROOT / "build"
    return sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def objects(compiler: str) -> list[Path]:
    """The folders with what the last build in place has compiled."""
    return list((ROOT / "build").glob("temp.*" if compiler == "setup" else "CMakeFiles"))


def finished(where: Place) -> dict | None:
    """The stamp of a finished build whose library is as the build has left it; it may be of another key."""
    try:
        found = read_stamp(where.stamp)
        return found if found["library"] == _identity(where.library) else None
    except (OSError, ValueError, KeyError):
        return None


def current(where: Place) -> dict | None:
    """The stamp of a finished build of this very key."""
    found = finished(where)
    return found if found and found["key"] == where.key else None


def write_stamp(stamp: Path, library: Path, key: str, cold_seconds: float, commands: list[str]) -> None:
    content = {"key": key, "surroundings": surroundings(), "library": _identity(library)}
    content |= {"cold_seconds": cold_seconds, "commands": commands}
    unfinished = stamp.with_suffix(".tmp")
    unfinished.write_text(json.dumps(content))
    unfinished.replace(stamp)


def read_stamp(stamp: Path) -> dict:
    """key, surroundings; library: its size and time; cold_seconds: what it took to build from nothing, when that was
    done last; commands: the compilers' and the linker's."""
    return json.loads(stamp.read_text())


def _identity(library: Path) -> list[int]:
    status = library.stat()
    return [status.st_size, status.st_mtime_ns]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """One process builds, the others wait. Yields the file descriptor that holds the lock.

    The kernel releases this lock when its holder dies, however it dies; a file that is a lock by its mere existence,
    as torch's own up to 2.13, would stay. A child that is given the descriptor holds the lock as well: a compilation
    in the project's folder that outlives its killed parent does not write into the next one.
    """
    while (file := _open_and_lock(path)) is None:
        pass
    with file:
        with contextlib.suppress(OSError):  # who we are is only good to know: a full disk need not stop us
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        yield file.fileno()


def _open_and_lock(path: Path) -> IO | None:
    """None where `clean` has removed the file, or its folder, since we opened it: then the lock is of no use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for {holder(path)} and its compilers, which build add2 ({path})", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return file
    return None


def holder(path: Path) -> str:
    """Who holds a lock, or held it last."""
    try:
        return f"process {int(path.read_text())}"
    except (OSError, ValueError):
        return "another process"


def is_held(path: Path) -> bool:
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def locks() -> list[Path]:
    return [path for path in (*jit_folder().glob("add2-*.lock"), ROOT / "build" / "lock") if path.exists()]


def clean() -> list[Path]:
    """Remove every build of this project, whatever it was built from, and what builds have left beside them."""
    removed = []
    with contextlib.ExitStack() as held:
        locked_files = locks()
        for path in locked_files:
            held.enter_context(locked(path))
        found = [*jit_folder().glob("add2-*"), *(ROOT / "add2").glob("*.so"), ROOT / "build"]
        for path in (path for path in found if path not in locked_files and path.exists()):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            removed.append(path)
        for path in locked_files:  # last: who waits for one looks whether it is still there
            path.unlink(missing_ok=True)
    return removed
