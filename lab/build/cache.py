"""Finished builds, each in a folder of its own: TORCH_EXTENSIONS_DIR/add2-BINDING-KEY.

The key is a hash of all that goes into a build: the content of the sources, the flags, torch and the tools; never a
time. A build is made in a temporary folder and renamed when it is complete, so a folder with a final name is whole.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from . import toolchain

ROOT = Path(__file__).resolve().parents[2]
RECORD = "build.json"  # in each folder that we have made, so the mark of it; how the build was made, if it is finished
SOURCES = ("setup.py", "setup.cfg", "pyproject.toml", "CMakeLists.txt")  # and all files of include/ and kernel/
VARIABLES = ("CXX", "CC", "CXXFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
VARIABLES += ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CUDAFLAGS", "CUDAHOSTCXX", "CMAKE_BUILD_TYPE")
VARIABLES += ("CMAKE_TOOLCHAIN_FILE", "CMAKE_GENERATOR", "DIST_EXTRA_CONFIG", "PYTORCH_NVCC", "LDSHARED", "LDCXXSHARED")


def sources() -> list[Path]:
    """Every file that can go into a build. Hidden ones, such as an editor's, do not."""
    found = [ROOT / name for name in SOURCES]
    for top in ("include", "kernel"):  # os.walk, because glob() does not enter a folder that is a link
        for folder, _, names in os.walk(ROOT / top, followlinks=True):
            found += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def changes() -> list[int]:
    """The time of each source's last change. An edit that is undone while a build runs leaves the content as it was."""
    return [path.stat().st_ctime_ns for path in sources()]


def place(binding: str, recipe: object) -> Path:
    """The folder of a build. recipe: its commands or flags.

    No program is started for it, so a warm start takes milliseconds. Headers outside this project that CPATH names are
    not looked at: `--rebuild` after they change.
    """
    nvcc, path = toolchain.find_nvcc(), toolchain.tool_path()
    tools = [nvcc, *(shutil.which(name, path=path) for name in (os.environ.get("CXX", "c++"), "ninja"))]
    parts: list[object] = [recipe, str(ROOT)]
    parts += [(os.path.realpath(tool), os.stat(tool).st_mtime_ns) for tool in tools if tool]
    parts.append(os.path.realpath("/usr/local/cuda"))  # where an nvcc that is a wrapper script often leads
    parts += [torch.__file__, torch.__version__, torch.version.git_version, torch.version.cuda]
    parts += [os.environ.get(name) for name in VARIABLES]
    parts.append(toolchain.arch_list() if nvcc else None)
    text = repr(parts).replace(sys.executable, "PYTHON")  # `python` or `python3`, it is the same
    digest = hashlib.sha256(text.encode())
    for source in sources():
        content = source.read_bytes()
        digest.update(f"{source.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return folder() / f"add2-{binding}-{digest.hexdigest()[:16]}"


def folder() -> Path:
    """Where torch keeps what it compiles just in time: TORCH_EXTENSIONS_DIR, or a folder in the user's cache."""
    if given := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(given).absolute()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch_extensions")
    except RuntimeError as error:
        unknown = "There is no HOME, so no folder for the builds"
        raise toolchain.Failure(f"{unknown}. Name one: `export TORCH_EXTENSIONS_DIR=FOLDER`.") from error


def find(place: Path) -> dict | None:
    """A finished build: its library, the seconds that it took, and the commands that ran; None if there is none."""
    try:
        record = json.loads((place / RECORD).read_text())
        found = record | {"library": place / record["library"]}
        return found if found["library"].stat().st_size == record["bytes"] else None  # not cut off by a power failure
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One process builds, the others wait.

    The kernel releases this lock when its holder dies, however it dies. A file that is a lock by its mere existence, as
    torch's own up to 2.13, stays (https://github.com/pytorch/pytorch/issues/189245).
    """
    import fcntl  # here, because Windows has none, and should read check_platform()'s message

    folder().mkdir(parents=True, exist_ok=True)
    path = folder() / "add2.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process, which builds add2 and holds {path}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A new folder to build in: compilers of a builder that was killed may still write into the old one."""
    for left in _ours(r"building-\w{8}"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="add2-building-", dir=folder(), ignore_cleanup_errors=True) as name:
        Path(name, RECORD).touch()
        yield Path(name)


def keep(library: Path, place: Path, seconds: float, commands: list[str], temporary: Path) -> None:
    """Move a library that was built in a temporary folder to its place, in one step."""
    finished = temporary / "finished"
    finished.mkdir()
    library.rename(finished / library.name)
    size = (finished / library.name).stat().st_size
    record = {"library": library.name, "bytes": size, "seconds": seconds, "commands": commands}
    (finished / RECORD).write_text(json.dumps(record))
    if place.exists():  # --rebuild, or a damaged one
        place.rename(temporary / "replaced")
    finished.rename(place)


def copy_to(folder: Path, library: Path) -> Path:
    """The copy of a library in the project's folder, made anew if it differs; in a folder that a user has configured
    with CMake, none. A process that has loaded the old one keeps it."""
    if (folder / "CMakeCache.txt").exists():
        return library
    copy = folder / library.name
    if not copy.is_file() or copy.read_bytes() != library.read_bytes():
        folder.mkdir(exist_ok=True)
        unfinished = copy.with_name(f"{os.getpid()}-{copy.name}")
        shutil.copy(library, unfinished)
        unfinished.replace(copy)
    return copy


def _ours(pattern: str) -> list[Path]:
    """The folders whose name says that they are ours, and the mark in them, too."""
    named = [path for path in folder().glob("add2-*") if re.fullmatch(f"add2-({pattern})", path.name)]
    return [path for path in named if (path / RECORD).is_file() and not path.is_symlink()]


def _is_whole(place: Path) -> bool:
    """A finished build, and nothing else in its folder: a user may have put something there."""
    found = find(place)
    return found is not None and {path.name for path in place.iterdir()} == {RECORD, found["library"].name}


def clean() -> Iterator[str]:
    """Remove every build, and the libraries that builds have left in the project; yields a line for each."""
    if folder().is_dir():
        with locked(), temporary() as removed:
            for path in filter(_is_whole, _ours("(dispatcher|pybind11)-[0-9a-f]{16}")):
                path.rename(removed / path.name)
                yield f"removed {path}"
    for library in (*ROOT.glob("add2/_C.abi3.so"), *ROOT.glob("add2/_pybind.cpython-*.so"), ROOT / "build/libadd2.so"):
        if library.exists():
            library.unlink()
            yield f"removed {library}"


def leftovers(folder: str, names: list[str]) -> set[str]:
    """For shutil.copytree(): what builds, tests and tools have written into the project's folder."""
    patterns = (".git", ".venv*", ".*_cache", ".hypothesis", "dist", "*.so", "*.egg-info", "__pycache__")
    # The folder `build` only in the project's root: lab/build is source.
    return shutil.ignore_patterns(*patterns, *["build"] * (Path(folder) == ROOT))(folder, names)
