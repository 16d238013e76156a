"""Earlier builds and what they were made from: a library is used again only if nothing that went into it has changed.

A build's key is a hash of the content of the sources, the flags, torch and the tools. A finished build leaves a stamp
with its key, written last and in one piece; a build that fails or is killed leaves none. Content decides, never times.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from . import toolchain

ROOT = Path(__file__).resolve().parents[2]
MARK = ".made-by-lab-build"  # in each folder that a build has made
SOURCES = ("include/**/*", "kernel/**/*", "setup.cfg", "pyproject.toml")

# A copy of the project leaves out whatever builds, tests and tools have written into its folder.
_LEFTOVERS = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "dist", "*.so", "*.egg-info", "__pycache__"
)


def leftovers(folder: str, names: list[str]) -> set[str]:
    """For shutil.copytree(). The folder `build` is left out in the project's root only: lab/build is source."""
    return _LEFTOVERS(folder, names) | ({"build"} & set(names) if Path(folder) == ROOT else set())


_VARIABLES = ("CXX", "CC", "CXXFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
_VARIABLES += ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CUDAFLAGS", "CUDAHOSTCXX", "CMAKE_BUILD_TYPE")
_VARIABLES += ("CMAKE_TOOLCHAIN_FILE", "CMAKE_GENERATOR", "DIST_EXTRA_CONFIG")


def key(recipe: object, *files: str) -> str:
    """The key of a build. recipe: the commands or flags of the build; files: read by it, in addition to the sources.

    No program is started for it, so that a warm start takes milliseconds.
    """
    nvcc, path = toolchain.find_nvcc(), toolchain.tool_path()
    tools = [nvcc, *(shutil.which(name, path=path) for name in (os.environ.get("CXX") or "c++", "ninja"))]
    parts: list[object] = [recipe, str(ROOT)]
    parts += [(os.path.realpath(tool), os.stat(tool).st_mtime_ns) for tool in tools if tool]
    parts.append(os.path.realpath("/usr/local/cuda"))  # where an nvcc that is a wrapper script often leads
    parts += [torch.__file__, torch.__version__, torch.version.git_version, torch.version.cuda]
    parts += [os.environ.get(name) for name in _VARIABLES]
    parts.append(toolchain.arch_list() if nvcc else None)
    digest = hashlib.sha256(repr(parts).encode())
    for path in sources(*files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def sources(*files: str) -> list[Path]:
    """Every file that can go into a build. Hidden ones, such as an editor's, do not."""
    found = {path for pattern in (*SOURCES, *files) for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not path.name.startswith("."))


def changes() -> list[int]:
    """The time of each source's last change. An edit that is undone while a build runs leaves the content as it was."""
    return [path.stat().st_ctime_ns for path in sources("setup.py", "CMakeLists.txt")]


@dataclass(frozen=True)
class Place:
    """Where one build lies. folder: with its lock, its log and its stamp."""

    folder: Path
    library: Path
    stamp: Path
    log: Path
    key: str

    @property
    def lock(self) -> Path:
        return self.folder / "lock"


def place(compiler: str, binding: str, key: str) -> Place:
    """jit has a folder for each key, so that a change of the sources and a change back find their library again; setup
    and cmake leave one library in the project's folder."""
    if compiler == "jit":
        folder = jit_folder() / f"add2-{binding}-{key}"
        library = folder / ("add2.so" if binding == "dispatcher" else "add2_pybind.so")
        return Place(folder, library, folder / "stamp.json", folder / "log", key)
    folder = ROOT / "build"
    library = folder / "libadd2.so"
    if compiler == "setup":
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        library = ROOT / "add2" / ("_C.abi3.so" if binding == "dispatcher" else f"_pybind{suffix}")
    name = f"{compiler}-{binding}"
    return Place(folder, library, folder / f"{name}.json", folder / f"{name}.log", key)


def jit_folder() -> Path:
    """Where torch keeps what it compiles just in time: TORCH_EXTENSIONS_DIR, or a folder of the user's cache."""
    if given := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch_extensions")
    except RuntimeError as error:
        unknown = "There is no HOME, so no folder for the jit build"
        raise toolchain.BuildError(f"{unknown}. Name one: `export TORCH_EXTENSIONS_DIR=FOLDER`.") from error


def jit_builds() -> list[Path]:
    """The folders of all jit builds, finished or not. The mark in them says that they are ours, not a user's."""
    hexadecimal = "[0-9a-f]" * 16
    found = [
        path for binding in ("dispatcher", "pybind11") for path in jit_folder().glob(f"add2-{binding}-{hexadecimal}")
    ]
    return [path for path in found if (path / MARK).is_file() and not path.is_symlink()]


def read_stamp(stamp: Path) -> dict | None:
    """root: the project's folder; key; library: its size and time; seconds that the build took; commands that ran.

    None: there is no stamp, or only a part of one.
    """
    try:
        found = json.loads(stamp.read_text())
        return found if found.keys() >= {"root", "key", "library", "seconds", "commands"} else None
    except (OSError, ValueError, AttributeError):
        return None


def last_stamp(compiler: str, binding: str) -> dict | None:
    """That of this project's newest finished build."""
    pattern = f"add2-{binding}-*/stamp.json" if compiler == "jit" else f"{compiler}-{binding}.json"
    found = (jit_folder() if compiler == "jit" else ROOT / "build").glob(pattern)
    stamps = [read_stamp(path) for path in sorted(found, key=lambda path: path.stat().st_mtime)]
    return next((stamp for stamp in reversed(stamps) if stamp and stamp["root"] == str(ROOT)), None)


def current(where: Place) -> dict | None:
    """The stamp of a finished build of this very key, whose library is as the build has left it."""
    stamp = read_stamp(where.stamp)
    with contextlib.suppress(OSError):
        if stamp and stamp["key"] == where.key and stamp["library"] == _identity(where.library):
            return stamp
    return None


def write_stamp(where: Place, seconds: float, commands: list[str]) -> None:
    stamp = {"root": str(ROOT), "key": where.key, "library": _identity(where.library)}
    unfinished = where.stamp.with_suffix(".tmp")
    unfinished.write_text(json.dumps(stamp | {"seconds": seconds, "commands": commands}))
    unfinished.replace(where.stamp)


def _identity(library: Path) -> list[int]:
    status = library.stat()
    return [status.st_size, status.st_mtime_ns]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """One process builds in a folder, the others wait. Yields the file descriptor that holds the lock.

    The kernel releases this lock when its holder dies, however it dies. A file that is a lock by its mere existence, as
    torch's own up to 2.13, stays (https://github.com/pytorch/pytorch/issues/189245). A child that is given the
    descriptor holds the lock as well: a compiler that outlives its killed parent does not write into the next build.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    ours = names <= {"lock", MARK}  # a folder that a user has filled stays unmarked, so `clean` leaves it
    while (file := _open_and_lock(folder)) is None:
        ours = True
    with file:
        with contextlib.suppress(OSError):  # the doctor wants to know who we are; a full disk need not stop us
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        if ours:
            (folder / MARK).touch()
        yield file.fileno()


def _open_and_lock(folder: Path) -> IO | None:
    """None where `clean` has removed the folder since we opened the file: then the lock protects nothing."""
    import fcntl  # here, because Windows has none, and should read check_platform()'s message

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock"
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


def holder(lock: Path) -> str:
    """The process that holds a lock, or held it last."""
    try:
        return f"process {int(lock.read_text())}"
    except (OSError, ValueError):
        return "another process"


def held_locks() -> list[Path]:
    import fcntl

    held = []
    for path in (folder / "lock" for folder in (*jit_builds(), ROOT / "build")):
        with contextlib.suppress(OSError), path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(path)
    return held


def clean() -> Iterator[str]:
    """Remove every jit build, build/ and the libraries in add2/; yields a line for each. Nothing that a build has not
    made: a folder without our mark stays, and so does what a symbolic link leads to."""
    for folder in (*jit_builds(), ROOT / "build"):
        if folder.is_symlink():
            yield f"kept {folder}: a symbolic link to {os.readlink(folder)}"
        elif (folder / MARK).is_file():
            with locked(folder):
                removed = folder.with_name(f"{folder.name}.removed-{os.getpid()}")
                folder.rename(removed)  # at once: a build that waits for the lock begins in a new folder
            shutil.rmtree(removed)
            yield f"removed {folder}"
        elif folder.exists():
            yield f"kept {folder}: no build of lab.build has made it"
    for library in (*(ROOT / "add2").glob("_C.abi3.so"), *(ROOT / "add2").glob("_pybind.cpython-*.so")):
        library.unlink()
        yield f"removed {library}"
