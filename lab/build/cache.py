"""Finished builds, each in a folder of its own: TORCH_EXTENSIONS_DIR/add2-COMPILER-KEY. The key is a hash of all that
goes into a build: the content of the sources, the flags, torch and the tools; never a time. A build is made in a
temporary folder and renamed when it is complete, so a folder with a final name is whole."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from . import toolchain

ROOT = Path(__file__).resolve().parents[2]
COPIES = {"setup": "add2/_C.abi3.so", "cmake": "build/libadd2.so"}  # where these builds also leave their library
RECORD = "build.json"  # in each folder that we have made, so the mark of it; and of a finished build, its commands
SOURCES = ("setup.py", "setup.cfg", "pyproject.toml", "CMakeLists.txt")  # and the files of include/ and kernel/
VARIABLES = ("CXX", "CC", "CXXFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
VARIABLES += ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CUDAFLAGS", "CUDAHOSTCXX", "CMAKE_BUILD_TYPE")
VARIABLES += ("CMAKE_TOOLCHAIN_FILE", "CMAKE_GENERATOR", "DIST_EXTRA_CONFIG", "PYTORCH_NVCC", "LDSHARED", "LDCXXSHARED")


def sources() -> list[Path]:
    """Every file that can go into a build; not hidden ones, such as an editor's, nor those of Python."""
    # Not Path.glob(), which does not enter a folder that is a link.
    found = [name for top in ("include", "kernel") for name in glob.glob(f"{top}/**", root_dir=ROOT, recursive=True)]
    names = [*SOURCES, *(name for name in found if not name.endswith((".py", ".pyc")))]
    return sorted(path for name in names if (path := ROOT / name).is_file())


def edits() -> list[int]:
    """When each source was last changed. An edit that is undone while a build runs leaves the content as it was."""
    return [path.stat().st_ctime_ns for path in sources()]


def place(compiler: str, recipe: object) -> Path:
    """The folder of a build. recipe: its commands or flags. No program is started, so this takes milliseconds."""
    nvcc, path = toolchain.find_nvcc(), toolchain.tool_path()
    tools = [nvcc, *(shutil.which(name, path=path) for name in (os.environ.get("CXX", "c++"), "ninja"))]
    parts: list[object] = [recipe, str(ROOT), toolchain.arch_list() if nvcc else None]
    parts += [(os.path.realpath(tool), os.stat(tool).st_mtime_ns) for tool in tools if tool]
    parts += [os.path.realpath("/usr/local/cuda")]  # where an nvcc that is a wrapper script often leads
    parts += [torch.__file__, torch.__version__, torch.version.git_version, torch.version.cuda]
    parts += [os.environ.get(name) for name in VARIABLES]
    digest = hashlib.sha256(repr(parts).replace(sys.executable, "PYTHON").encode())  # `python` or `python3`: the same
    for source in sources():
        content = source.read_bytes()
        digest.update(f"{source.relative_to(ROOT)} {len(content)}\n".encode(errors="surrogateescape") + content)
    return folder() / f"add2-{compiler}-{digest.hexdigest()[:16]}"


def folder() -> Path:
    """Where torch keeps what it compiles just in time: TORCH_EXTENSIONS_DIR, or a folder in the user's cache."""
    if given := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(given).absolute()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch_extensions")
    except RuntimeError as error:
        unknown = "There is no HOME, so no folder for the builds"
        raise toolchain.Failure(f"{unknown}. Name one: `export TORCH_EXTENSIONS_DIR=FOLDER`.") from error


def find(place: Path) -> Path | None:
    """The library of a finished build; None if there is none, or if a power failure has cut it off."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((place / RECORD).read_text())
        return library if (library := place / record["library"]).stat().st_size == record["bytes"] else None
    return None


@contextlib.contextmanager
def locked() -> Iterator[Path]:
    """One process builds, in the new folder that this yields; the others wait."""
    # The kernel releases this lock when its holder dies. A file that is a lock by its mere existence, as torch's own up
    # to 2.13, stays (https://github.com/pytorch/pytorch/issues/189245).
    import fcntl  # here, because Windows has none, and should read check_platform()'s message

    folder().mkdir(parents=True, exist_ok=True)
    path = folder() / "add2.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process, which builds add2 and holds {path}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        # Always a new folder: compilers of a builder that was killed may still write into its own.
        for left in folder().glob("add2-building-" + 8 * "[a-z0-9_]"):
            if (left / RECORD).is_file() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="add2-building-", dir=folder(), ignore_cleanup_errors=True) as name:
            Path(name, RECORD).touch()
            yield Path(name)


def keep(place: Path, library: Path, commands: list[str]) -> Path:
    """Move a library from the folder in which it was built to its place, in one step; commands: those that ran."""
    record = {"library": library.name, "bytes": library.stat().st_size, "commands": commands}
    finished = library.with_name("finished")
    finished.mkdir()
    library.rename(finished / library.name)
    (finished / RECORD).write_text(json.dumps(record, indent=1))
    if place.exists():  # --rebuild, or a damaged one
        place.rename(library.with_name("replaced"))
    finished.rename(place)
    return place / library.name


def copy(library: Path, name: str) -> Path:
    """The copy of a library in the project's folder, made anew if it differs. A process that uses it keeps its own."""
    copy = ROOT / name
    if (copy.parent / "CMakeCache.txt").exists():  # the library of a user who has called CMake
        return library
    if not copy.is_file() or copy.read_bytes() != library.read_bytes():
        copy.parent.mkdir(exist_ok=True)
        unfinished = copy.with_name(f"{os.getpid()}-{copy.name}")
        shutil.copy(library, unfinished)
        unfinished.replace(copy)
    return copy


def clean() -> Iterator[str]:
    """Remove every build, and the libraries that builds have left in the project; yields a line for each."""
    if folder().is_dir():
        with locked() as removed:
            for path in folder().glob("add2-*-" + 16 * "[0-9a-f]"):
                library = None if path.is_symlink() else find(path)
                # Where there is anything else, a user has put it there.
                if library and {each.name for each in path.iterdir()} == {RECORD, library.name}:
                    path.rename(removed / path.name)
                    yield f"removed {path}"
    for library in (ROOT / name for name in COPIES.values()):
        if library.exists() and not library.with_name("CMakeCache.txt").exists():  # which a user has configured
            library.unlink()
            yield f"removed {library}"


def leftovers(folder: str, names: list[str]) -> set[str]:
    """For shutil.copytree(): what builds, tests and tools have written into the project's folder."""
    patterns = (".git", ".venv*", ".*_cache", ".hypothesis", "dist", "*.so", "*.egg-info", "__pycache__")
    return shutil.ignore_patterns(*patterns, *["build"] * (Path(folder) == ROOT))(folder, names)  # lab/build is source
