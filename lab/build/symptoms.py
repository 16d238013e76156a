"""Causes and cures of the errors of compilers, linkers, loaders and torch: docs/troubleshooting.md as code."""

import re
import sys
from dataclasses import dataclass

REBUILD = "build again: `python3 time.py --compiler jit --rebuild` (or setup, cmake)"


@dataclass(frozen=True)
class Symptom:
    """pattern: a regular expression for the message. running: it may also come from a call of the operator."""

    pattern: str
    cause: str
    cure: str
    running: bool = False


SYMPTOMS = [
    Symptom(
        r"undefined symbol",
        "the library was built against another torch, or without a source file that it needs",
        REBUILD,
    ),
    Symptom(
        r"no kernel image is available|no kernel image",
        "the library has no code for this GPU: it was compiled for other ones",
        "unset TORCH_CUDA_ARCH_LIST, or put this GPU in it, and " + REBUILD,
        running=True,
    ),
    Symptom(
        r"built without CUDA code|has no CUDA code",
        "the library has no CUDA part: no nvcc was found when it was built",
        "`python3 -m lab.doctor` says how to get one; then " + REBUILD,
        running=True,
    ),
    Symptom(
        r"lib(c10|torch)\w*\.so\S*: cannot open shared object file",
        "the library was loaded before torch, which brings what it is linked to",
        "`import torch` first; a C++ program puts torch's lib folder in its run path",
    ),
    Symptom(
        r"file too short|invalid ELF header|file data of \S* is not|cannot read file data",
        "the library is damaged",
        REBUILD,
    ),
    Symptom(
        r"failed to map segment from shared object",
        "the library lies on a disk from which no code may run (mounted with `noexec`), or memory is limited",
        "for the jit build, set TORCH_EXTENSIONS_DIR to a folder elsewhere; for the others, move the project",
    ),
    Symptom(
        r"Python\.h: No such file",
        "the headers of this Python are not installed; the pybind11 binding needs them, the dispatcher's does not",
        f"`sudo apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-dev` (Fedora: python3-devel),"
        " or leave out --binding pybind11",
    ),
    Symptom(
        r"unsupported GNU version|unsupported clang version|host compiler (is )?not supported",
        "nvcc refuses the C++ compiler, which is newer than itself",
        "install an older one and name it: `CXX=g++-13 NVCC_PREPEND_FLAGS='-ccbin g++-13' python3 time.py ...`;"
        " or install a newer nvcc",
    ),
    Symptom(
        r"Unsupported gpu architecture|is not defined for option 'gpu-(architecture|code)'",
        "nvcc does not know the GPU that it is to compile for",
        "install a newer nvcc, or set TORCH_CUDA_ARCH_LIST to GPUs that it knows, with +PTX behind the last",
    ),
    Symptom(
        r"CUDA version \(.*\) mismatches|was compiled with a different version of CUDA",
        "nvcc and torch belong to different CUDA versions",
        "`python3 -m lab.doctor` says which, and what to install",
    ),
    Symptom(
        r"CUDA driver version is insufficient|provided PTX was compiled with an unsupported toolchain",
        "the GPU's driver is older than the CUDA that the library or torch was built with",
        "update the driver; or install a torch of an older CUDA, and " + REBUILD,
        running=True,
    ),
    Symptom(
        r"Ninja is required|ninja\S* is not installed",
        "the jit build runs its commands by ninja",
        "`python3 -m pip install ninja`",
    ),
    Symptom(
        r"No space left on device|Disk quota exceeded",
        "the disk is full",
        "`python3 -m lab.build clean` removes all builds of add2; TORCH_EXTENSIONS_DIR and TMPDIR name other disks",
    ),
    Symptom(
        r"Read-only file system|Permission denied|Not a directory|File exists",
        "the build cannot write there",
        "make it writable; for the jit build, or set TORCH_EXTENSIONS_DIR to a folder that is",
    ),
    Symptom(
        r"[Kk]illed signal terminated program|Killed\b|out of memory allocating",
        "the machine ran out of memory while compiling",
        "set MAX_JOBS=1, to compile one file at a time",
    ),
    Symptom(
        r"GLIBCXX_\S+. not found|CXXABI_\S+. not found|GLIBC_\S+. not found",
        "the library was built with a newer C++ runtime than the one that this process has loaded",
        "with conda: `conda install -c conda-forge libstdcxx-ng`; else " + REBUILD + " on this machine",
    ),
    Symptom(
        r"torch/\S+\.h: No such file",
        "the compiler does not see torch's headers, or torch is older than 2.10",
        "`python3 -m pip install --upgrade torch`; for CMake called by hand: -DPython3_EXECUTABLE=PYTHON",
    ),
    Symptom(
        r"Tried to register an operator|[Oo]nly a single TORCH_LIBRARY|Duplicate registration",
        "two builds of add2 were loaded in one process",
        "load one: restart Python (a notebook's kernel), and import add2 or load one build",
    ),
]


def whole(error: BaseException) -> str:
    """The text of an error and of those that caused it: torch puts the loader's message behind one of its own."""
    return str(error) + (f"\n{whole(error.__cause__)}" if error.__cause__ else "")


def find(message: str, running: bool = False) -> Symptom | None:
    """The symptom that an error message shows; None for one that is not known.

    running: the message comes from a call of the operator, so the symptoms of builds are left out: there, "File exists"
    is another error.
    """
    known = [symptom for symptom in SYMPTOMS if symptom.running or not running]
    return next((symptom for symptom in known if re.search(symptom.pattern, message)), None)


def explain(message: str, running: bool = False) -> str | None:
    """The cause and the cure of an error, in two lines; None for one that is not known."""
    symptom = find(message, running)
    return symptom and f"Cause: {symptom.cause}.\nCure: {symptom.cure}."
