"""What was built before, and from what: a build is used again only if nothing that went into it has changed.

Each finished build leaves a stamp, a JSON file with the fingerprint of its inputs. It is written last and in one
piece, so a build that fails or is killed leaves none, and what it did leave is never taken for a good library.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from . import toolchain

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ["include/*", "kernel/*", "setup.py", "CMakeLists.txt", "lab/compilers.py", "lab/toolchain.py"]

_VARIABLES = ("CXX", "CC", "CXXFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "LIBRARY_PATH")
_VARIABLES += ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CUDAFLAGS", "CUDAHOSTCXX")


def fingerprint(*parts: object) -> str:
    """A short name for all that decides what a build's result is: sources, torch, toolchain, and the given parts."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    nvcc = toolchain.find_nvcc()
    cxx = shutil.which(os.environ.get("CXX") or "c++")
    compilers = [(os.path.realpath(path), os.stat(path).st_mtime_ns) for path in (nvcc, cxx) if path]
    flags = [os.environ.get(name) for name in _VARIABLES]
    archs = toolchain.arch_list() if nvcc else None
    digest.update(repr([torch.__file__, torch.__version__, str(ROOT), compilers, flags, archs, parts]).encode())
    return digest.hexdigest()[:16]


def jit_folder() -> Path:
    """Where torch keeps what it compiles just in time: TORCH_EXTENSIONS_DIR, or a folder of the user's cache."""
    if given := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch_extensions")


def is_current(stamp: Path, library: Path, key: str) -> bool:
    try:
        found = json.loads(stamp.read_text())
        return found["key"] == key and found["library"] == _identity(library)
    except (OSError, ValueError, KeyError):
        return False


def write_stamp(stamp: Path, library: Path, key: str, seconds: float) -> None:
    unfinished = stamp.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"key": key, "library": _identity(library), "seconds": seconds}))
    unfinished.replace(stamp)


def cold_seconds(stamp: Path) -> float:
    """What the build that left this stamp took."""
    return json.loads(stamp.read_text())["seconds"]


def _identity(library: Path) -> list[int]:
    status = library.stat()
    return [status.st_size, status.st_mtime_ns]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process builds, the others wait. The kernel releases this lock when its holder dies, however it dies."""
    from filelock import FileLock, Timeout  # comes with torch; imported late, a warm start does without it

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting for another process that is building add2 ({path})", file=sys.stderr)
            lock.acquire()
    except OSError as error:
        raise toolchain.BuildError(
            f"Cannot write to {path.parent}: {error.strerror}. Make it writable"
            " (for the jit build: or set TORCH_EXTENSIONS_DIR to a folder that is)."
        ) from error
    try:
        yield
    finally:
        lock.release()
