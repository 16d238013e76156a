"""Compile CUDA files with g++ into a library that the emulator runs. Libraries are kept by what they are made of."""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .translation import HEADERS, MARKER, TranslationError, translate
from .unknown import explain

HERE = Path(__file__).resolve().parent
# As if for an H100, whose instructions for matrices and clusters are then named in an error, not left out.
DEFINES = ["__CUDACC__", "__NVCC__", "__CUDA_ARCH__=900", "__CUDA_ARCH_FEAT_SM90_ALL", "__CUDACC_VER_MAJOR__=13"]
READ = ["-x", "c++", *(f"-D{name}" for name in DEFINES), "-isystem", str(HEADERS)]
# Each access calls a function before it (thread), each basic block (trace-pc), and each index that is wrong (bounds and
# object-size) or address (alignment). The other options keep the order of the code, and a struct's copy in one piece.
WATCH = ["-fsanitize=thread,bounds,object-size,alignment", "-fsanitize-coverage=trace-pc"]
WATCH += ["--param", "tsan-distinguish-volatile=1", "-fno-tree-sra", "-fno-reorder-blocks", "-fno-thread-jumps"]
WATCH += ["-fno-strict-aliasing", "-fno-threadsafe-statics", "-fno-optimize-sibling-calls", "-fvisibility=hidden"]
COMPILE = ["-O1", "-g1", "-w", "-fPIC", "-fno-allocation-dce", "-fno-builtin-malloc", "-fno-builtin-free", *WATCH]
WRAPPED = ["exit", "abort", "__assert_fail", "malloc", "free"]
WRAPPED += ["_Znwm", "_Znam", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm"]  # operator new, new[], delete, delete[]
LINK = ["-shared", *(f"-Wl,--wrap={name}" for name in WRAPPED)]
# Of nvcc, and of no use here. The second ones take a value of their own.
ALONE: tuple[str, ...] = (
    "-arch",
    "--gpu-architecture",
    "-gencode=",
    "-lineinfo",
    "-G",
    "--use_fast_math",
    "-use_fast_math",
    "-O",
    "-g",
)
ALONE += (
    "--expt-",
    "-expt-",
    "--extended-lambda",
    "-extended-lambda",
    "-rdc",
    "--ptxas-options",
    "-Xptxas=",
    "-maxrreg",
)
WITH_VALUE = ("-gencode", "-Xptxas", "-Xcompiler", "-ccbin", "--compiler-bindir")


OFTEN_USED = {"barriers", "callbacks", "copies", "count", "fibers", "flow", "lanes", "matrix", "numbers"}
OFTEN_USED |= {"order", "regions", "rules", "schedule", "watch"}


class BuildError(RuntimeError):
    """The compiler's words, or why there is none."""


class CannotBuild(BuildError):
    """This machine compiles nothing: it has no compiler, or no folder for what it makes."""


def compiler() -> str:
    """The path of the C++ compiler: CXX, or g++."""
    name = os.environ.get("CXX", "g++")
    cure = "the emulator needs GCC's g++ 12 or newer on Linux: `sudo apt-get install g++`, or set CXX"
    if sys.platform != "linux":
        raise CannotBuild(f"this is {sys.platform}; {cure}")
    if not (found := shutil.which(name)):
        raise CannotBuild(f"{name} is not installed; {cure}")
    if "clang" in _first_line(found):
        raise CannotBuild(f"{name} is clang, whose sanitizers differ; {cure}")
    return found


@functools.cache
def _first_line(program: str) -> str:
    return _run([program, "--version"]).splitlines()[0]


def cache() -> Path:
    """The folder of compiled libraries: EMULATOR_CACHE, or one in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("EMULATOR_CACHE") or Path(home, "cuda-emulator"))
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """An error that this causes names its cure."""
    try:
        yield
    except OSError as error:
        cure = "set EMULATOR_CACHE to a folder that can be written"
        raise CannotBuild(f"cannot write {path}: {error.strerror}; {cure}") from None


def runtime() -> Path:
    """The library with the emulator itself, compiled once."""
    sources = [*sorted((HERE / "runtime").iterdir()), HEADERS / "emulator/runtime.h", HERE / "build.py"]
    key = _hash(_first_line(compiler()), *(path.read_bytes() for path in sources))
    library = cache() / f"emulator-{key}.so"

    return _made(library, lambda path: _compile_runtime(library.name, path))


def _compile_runtime(name: str, library: Path) -> None:
    """Two files that include the others, at the same time: headers are read once, and two cores work."""
    flags = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-w", "-I", str(HEADERS), "-x", "c++", "-", "-c"]
    groups: dict[str, list[Path]] = {"-O2": [], "-O1": []}
    for source in sorted((HERE / "runtime").glob("*.cpp")):
        groups["-O2" if source.stem in OFTEN_USED else "-O1"].append(source)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        objects = {level: str(Path(folder, f"{level}.o")) for level in groups}
        texts = {level: "".join(f'#include "{path}"\n' for path in group) for level, group in groups.items()}
        commands = {level: [compiler(), level, *flags, "-o", objects[level]] for level in groups}
        list(pool.map(_run, commands.values(), texts.values()))
        _run([compiler(), "-shared", f"-Wl,-soname,{name}", *objects.values(), "-o", str(library)])


def precompiled(flags: Sequence[str]) -> Path:
    """A header with CUDA's own declarations, which g++ has read once: that is most of what it does for a small kernel.

    Where the flags differ too much from those it was made with, g++ ignores what it has kept, and reads the text.
    """
    standard = [flag for flag in flags if flag.startswith("-std=")]
    texts = [path.read_bytes() for path in [*sorted(HEADERS.rglob("*")), HERE / "build.py"] if path.is_file()]
    # Its debug information names the headers' folder, by which lines.py tells them from the user's files.
    header = cache() / f"cuda-{_hash(_first_line(compiler()), str(HEADERS), *standard, *texts)}.h"

    def make(path: Path) -> None:
        _write(header, f'#include "{HEADERS}/cuda_runtime.h"\n')
        read = ["-x", "c++-header", *READ[2:]]
        _run([compiler(), *standard, *COMPILE, *read, str(header), "-o", str(path)])

    _made(header.with_suffix(".h.gch"), make)  # g++ looks for this name
    return header


def build(sources: Sequence[Path], flags: Sequence[str] = ()) -> Path:
    """The library of some .cu files. BuildError with the compiler's words if it refuses one."""
    for source in sources:
        if not source.is_file():
            raise BuildError(f"{source} is not a file")
    ours = runtime()
    flags = _for_gcc(flags)
    header = precompiled(flags)
    translation = [path.read_bytes() for path in sorted((HERE / "translation").glob("*.py"))]
    key = _hash(ours.name, header.name, *translation, "\0".join(flags), *(str(source.resolve()) for source in sources))
    manifest = cache() / f"{key}.json"  # names the files that were read, and what was in them
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads(manifest.read_text())
        library = cache() / known["library"]
        if library.exists() and all(_hash(Path(path).read_bytes()) == sum for path, sum in known["files"].items()):
            return library
    texts = [_preprocess(source, flags, header) for source in sources]
    files = sorted({path for text in texts for path in _files(text)})
    try:
        translated = [translate(text) for text in texts]
    except TranslationError as error:
        raise BuildError(str(error)) from None
    library = cache() / f"kernels-{_hash(ours.name, ' '.join(flags), *translated)}.so"
    _made(library, lambda path: _compile(translated, flags, ours, path))
    sums = {path: _hash(Path(path).read_bytes()) for path in files}
    _write(manifest, json.dumps({"library": library.name, "files": sums}))
    return library


def load(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))


def _for_gcc(flags: Sequence[str]) -> list[str]:
    """Without what only nvcc knows."""
    kept, skip = [], False
    for flag in map(str, flags):
        if skip:
            skip = False
        elif flag in WITH_VALUE:
            skip = True
        elif not flag.startswith(ALONE):
            kept.append(flag)
    return kept if any(flag.startswith("-std=") for flag in kept) else ["-std=c++17", *kept]


def _preprocess(source: Path, flags: list[str], header: Path) -> str:
    """The text of a file without macros. A pragma stands for the header, if g++ takes what it has kept of it."""
    try:
        source.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise BuildError(f"{source} is no text in UTF-8: {error}") from None
    include = ["-fpch-preprocess", "-include", str(header)]
    return _run([compiler(), "-E", *flags, *COMPILE, *READ, *include, str(source.resolve())])


def _files(text: str) -> set[str]:
    """The files that a preprocessed text comes from, but for those of the system and the precompiled header's."""
    names = {marker[2] for marker in MARKER.finditer(text)}
    return {name for name in names if not name.startswith(("<", "/usr/include", "/usr/lib")) and Path(name).is_file()}


def _compile(texts: list[str], flags: list[str], ours: Path, library: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for number, text in enumerate(texts):
            source = Path(folder, f"{number}.ii")
            source.write_text(text)
            objects.append(str(source.with_suffix(".o")))
            _run([compiler(), *flags, *COMPILE, "-c", str(source), "-o", objects[-1]])
        libraries = [flag for flag in flags if flag.startswith(("-l", "-L", "-Wl,"))]
        _run([compiler(), *LINK, *objects, str(ours), f"-Wl,-rpath,{ours.parent}", *libraries, "-o", str(library)])


def _run(command: list[str], text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(explain(done.stderr) or f"g++ refuses it:\n{done.stderr.strip()}")
    return done.stdout


def _made(path: Path, make: Callable[[Path], None]) -> Path:
    """The path, made by make(temporary path) unless it is there. Of several processes one makes it."""
    if not path.exists():
        with _lock(path.with_suffix(".lock")):
            if not path.exists():
                temporary = path.with_suffix(f".{os.getpid()}.tmp")
                make(temporary)
                os.replace(temporary, path)
    return path


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with _writing(path):
        file = path.open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _hash(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:24]
