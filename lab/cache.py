"""What was built before, where it lies, and from what: a build is used again only if nothing that went into it changed.

Each finished build leaves a stamp, a JSON file with the fingerprint of its inputs. It is written last and in one
piece, so a build that fails or is killed leaves none, and what it did leave is never taken for a good library.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from . import toolchain

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ["include/*", "kernel/*", "setup.py", "CMakeLists.txt", "lab/compilers.py", "lab/toolchain.py"]

_VARIABLES = ("CXX", "CC", "CXXFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "LIBRARY_PATH")
_VARIABLES += ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CUDAFLAGS", "CUDAHOSTCXX")


def surroundings() -> str:
    """A short name for torch, the toolchain, its flags and the GPUs: all that decides on a build beside the sources.

    No program is started for it, so that a warm start takes milliseconds.
    """
    nvcc = toolchain.find_nvcc()
    cxx = shutil.which(os.environ.get("CXX") or "c++")
    compilers = [(os.path.realpath(path), os.stat(path).st_mtime_ns) for path in (nvcc, cxx) if path]
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
    pattern = f"add2-{binding}-*/stamp.json" if compiler == "jit" else f"{compiler}-{binding}.json"
    folder = jit_folder() if compiler == "jit" else ROOT / "build"
    return sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def objects(compiler: str) -> list[Path]:
    """The folders with what the last build in place has compiled."""
    return list((ROOT / "build").glob("temp.*" if compiler == "setup" else "CMakeFiles"))


def is_current(where: Place) -> bool:
    """Whether a build is finished, of this key, and its library as the build has left it."""
    try:
        found = read_stamp(where.stamp)
        return found["key"] == where.key and found["library"] == _identity(where.library)
    except (OSError, ValueError, KeyError):
        return False


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
    that outlives its killed parent does not write into the next one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for {holder(path)}, which is building add2 ({path})", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
            if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                continue  # `clean` has removed the file that we have waited for
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield file.fileno()
            return


def holder(path: Path) -> str:
    """Who holds a lock, or held it last."""
    try:
        return f"process {int(path.read_text())}"
    except (OSError, ValueError):
        return "another process"


def is_held(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def locks() -> list[Path]:
    return [path for path in (*jit_folder().glob("add2-*.lock"), ROOT / "build" / "lock") if path.exists()]


def clean() -> list[Path]:
    """Remove every build of this project, whatever it was built from, and what builds have left beside them."""
    found = [*jit_folder().glob("add2-*"), ROOT / "build", *(ROOT / "add2").glob("*.so")]
    found = [path for path in found if path.exists()]
    with contextlib.ExitStack() as held:
        for path in locks():
            held.enter_context(locked(path))
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found
