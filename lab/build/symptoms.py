"""Causes and cures of errors that compilers, linkers, loaders and torch tell in words that are hard to read.

docs/troubleshooting.md has them too, and others that need no table.
"""

import re
from pathlib import Path

from .toolchain import Failure

REBUILD = "build again: `python3 time.py --compiler jit --rebuild` (or setup, cmake)"
RUNNING = [  # errors of a call of the operator, or of a build: a pattern for the message, the cause, the cure
    (
        r"no kernel image",
        "the library has no code for this GPU: it was compiled for other ones",
        "unset TORCH_CUDA_ARCH_LIST, or put this GPU in it, and " + REBUILD,
    ),
    (
        r"built without CUDA code|has no CUDA code",
        "the library has no CUDA part: no nvcc was found when it was built",
        "`python3 -m lab.doctor` says how to get one; then " + REBUILD,
    ),
    (
        r"CUDA driver version is insufficient|provided PTX was compiled with an unsupported toolchain",
        "the GPU's driver is older than the CUDA that the library or torch was built with",
        "update the driver; or install a torch of an older CUDA, and " + REBUILD,
    ),
]
BUILDING = [
    (
        r"undefined symbol",
        "the library was built against another torch, or without a source file that it needs",
        REBUILD,
    ),
    (
        r"lib(c10|torch)\w*\.so\S*: cannot open shared object file",
        "the library was loaded before torch, which brings what it is linked to",
        "`import torch` first; a C++ program puts torch's lib folder in its run path",
    ),
    (
        r"unsupported (GNU|clang) version|host compiler (is )?not supported",
        "nvcc refuses the C++ compiler, which is newer than itself",
        "install an older one and name it: `CXX=g++-13 NVCC_PREPEND_FLAGS='-ccbin g++-13' python3 time.py ...`;"
        " or install a newer nvcc",
    ),
    (
        r"Unknown CUDA arch|Unsupported gpu architecture|is not defined for option 'gpu-(architecture|code)'",
        "torch or nvcc does not know the GPU that it is to compile for",
        "install a newer one, or set TORCH_CUDA_ARCH_LIST to GPUs that they know, with +PTX behind the last",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full",
        "`python3 -m lab.build clean` removes all builds of add2; TORCH_EXTENSIONS_DIR and TMPDIR name other disks",
    ),
    (
        r"Read-only file system|Permission denied|Not a directory|File exists|failed to map segment",
        "the build cannot write there, or no code may run from there (mounted with `noexec`)",
        "set TORCH_EXTENSIONS_DIR to a folder elsewhere; for setup and cmake, move the project",
    ),
    (
        r"[Kk]illed signal terminated program|Killed\b|out of memory allocating",
        "the machine ran out of memory while compiling",
        "set MAX_JOBS=1, to compile one file at a time",
    ),
]


def explain(message: str, running: bool = False) -> str | None:
    """The cause and the cure of an error, in two lines; None for one that is not known.

    running: the message comes from a call of the operator. There, "File exists" is another error.
    """
    for pattern, cause, cure in RUNNING if running else RUNNING + BUILDING:
        if re.search(pattern, message):
            return f"Cause: {cause}.\nCure: {cure}."
    return None


def with_cure(message: str) -> Failure:
    return Failure("\n".join(filter(None, [message, explain(message)])))


def whole(error: BaseException) -> str:
    """The text of an error and of those that caused it: torch puts the loader's message behind one of its own."""
    return str(error) + (f"\n{whole(error.__cause__)}" if error.__cause__ else "")


def failure(log: Path) -> Failure:
    """The error of a build that failed: from its log, the first lines that matter, and the cure if we know one."""
    text = log.read_text(errors="replace")
    lines = text.splitlines()
    real = [line for line in lines if re.search("error:|error |fatal|cannot find -l|undefined ", line)]
    shown = real or [line for line in lines if re.search("[Ee]rror|FAILED", line)] or lines[-5:]
    parts = ["The build failed:", *(f"    {line}" for line in shown[:5]), explain(text)]
    return Failure("\n".join([*filter(None, parts), f"The whole log: {log}"]))
