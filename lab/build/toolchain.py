"""The tools that a build needs, and the GPUs to compile for. toolkit.py finds nvcc.

Each question has one function; a tool that is missing and needed raises BuildError, whose text is the cure.
"""

import contextlib
import functools
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch

from .. import Failure
from . import toolkit
from .toolkit import cuda_root

# No GPU in sight: compile to PTX, which the driver of any GPU since sm_75 (Turing) finishes compiling as it loads it.
PTX_FOR_ALL = "-gencode=arch=compute_75,code=compute_75"


class BuildError(Failure):
    """A build that did not work."""


def check_platform() -> None:
    """Raise BuildError where the project is not supported."""
    if sys.platform != "linux":
        raise BuildError(f"add2 needs Linux, and this is {sys.platform}. On Windows, WSL 2 is a Linux.")
    if torch.version.hip:
        found = f"torch {torch.__version__} was built for AMD's ROCm"
        raise BuildError(f"{found}, and add2 has CUDA and CPU kernels only: `python3 -m pip install torch`.")


def check(*folders: Path) -> None:
    """Raise BuildError for what would fail later, in words that are harder to read. folders: those of the build."""
    check_folders(*folders)
    max_jobs()
    host_compiler()
    check_nvcc()


def check_folders(*folders: Path) -> None:
    for folder in (*folders, Path(torch.__file__).parent):
        if found := re.search(r"""[$:;|{}"'\\\n]""", str(folder)):
            raise BuildError(f"The path {folder} has {found[0]!r} in it, which ninja or CMake cannot take. Rename it.")


def max_jobs() -> str:
    """How many files to compile at once: MAX_JOBS, or what ninja does by itself."""
    given = os.environ.get("MAX_JOBS") or str((os.cpu_count() or 1) + 2)
    if not given.isascii() or not given.isdigit() or int(given) == 0:
        raise BuildError(f"MAX_JOBS is {given!r}, expected a number from 1 on. Unset it, or `export MAX_JOBS=1`.")
    return given


def tool_path() -> str:
    """PATH for a build: a virtual environment that is called by its path, not activated, has its tools off PATH."""
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    if (spec := importlib.util.find_spec("ninja")) and spec.submodule_search_locations:
        folders.insert(1, str(Path(spec.submodule_search_locations[0], "data", "bin")))
    return os.pathsep.join(folders)


def require(tool: str, cure: str) -> str:
    """The path of a tool, or a BuildError that names the cure."""
    found = shutil.which(tool, path=tool_path())
    if found is None:
        raise BuildError(f"{tool} is not installed (it is not on PATH). {cure}")
    return found


def host_compiler() -> str:
    """The path of the C++ compiler: CXX, or c++."""
    given = os.environ.get("CXX") or "c++"
    if re.search(r"""[\s"']""", given):
        raise BuildError(
            f"CXX is {given!r}, expected the name of a compiler and no more, such as CXX=g++. ccache needs only be on"
            " PATH (torch 2.13 and later use it by themselves); for CMake, set CMAKE_CXX_COMPILER_LAUNCHER=ccache."
        )
    return require(
        given,
        "A C++ compiler is needed: `sudo apt-get install g++` (Debian, Ubuntu), `sudo dnf install gcc-c++` (Fedora), "
        f"`conda install cxx-compiler`; or set CXX to the one you have.{_nvrtc_cure()}",
    )


@functools.cache
def find_nvcc() -> Path | None:
    """nvcc, or None where only the CPU part is to be built: torch without CUDA, no toolkit, or ADD2_WITH_CUDA=0.

    Raises:
        BuildError: ADD2_WITH_CUDA=1, and there is none.
    """
    wanted = os.environ.get("ADD2_WITH_CUDA", "")
    found = None
    if wanted != "0" and torch.version.cuda is not None:
        found = toolkit.find_nvcc(torch.version.cuda.split(".")[0])
    if wanted == "1" and found is None:
        raise BuildError(f"ADD2_WITH_CUDA=1, but {cuda_cure()}")
    return found


def cuda_cure() -> str:
    """Why find_nvcc() found none, and what to do."""
    if os.environ.get("ADD2_WITH_CUDA") == "0":
        return "ADD2_WITH_CUDA=0 is set in the environment; unset it."
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA in it; install a CUDA build: `python3 -m pip install torch`."
    return f"no nvcc is found. {nvcc_cure()}{_nvrtc_cure()}"


def _nvrtc_cure() -> str:
    """Where there is a GPU, the way that needs no compiler."""
    return " Or use `--compiler nvrtc`, which needs none." if torch.cuda.is_available() else ""


def lack_for_nvrtc() -> str | None:
    """A line that says why the nvrtc build cannot run here, and the cure; None if it can."""
    if torch.version.cuda is None:
        return cuda_cure()
    if not torch.cuda.is_available():
        return (
            "it compiles for the GPU of this machine, and none is found. `nvidia-smi` says whether a driver is there."
        )
    try:
        found = importlib.util.find_spec("cuda.core")  # not an import: that takes 0.2 s, which belong to the build
    except ImportError:  # no package cuda at all
        found = None
    return None if found else "the package cuda-core is missing. Install it: `python3 -m pip install cuda-core`."


def nvcc_cure() -> str:
    """How to get the nvcc that fits torch."""
    cuda = torch.version.cuda or ""
    if int(cuda.split(".")[0]) < 13:  # the wheels of CUDA 12 have no folder that is a toolkit
        found = f"torch {torch.__version__} was built with CUDA {cuda}"
        return f"{found}: install that toolkit, and set CUDA_HOME to its folder."
    names = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
    packages = " ".join(
        f'"{name}=={cuda}.*"' for name in names
    )  # one version: nvcc's headers and its parts belong together
    return (
        f"torch {torch.__version__} was built with CUDA {cuda}: `python3 -m pip install {packages}`,"
        f" or set CUDA_HOME to the folder of a CUDA {cuda.split('.')[0]} toolkit."
    )


@functools.cache
def nvcc_release(nvcc: Path) -> tuple[int, int]:
    """The CUDA version of an nvcc, such as (13, 0)."""
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"{nvcc} does not run: {error.strerror}. {nvcc_cure()}") from error
    match = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if match is None:
        said = (done.stdout + done.stderr).strip().splitlines()
        names = [name for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS") if os.environ.get(name)]
        cure = f"Unset {' and '.join(names)}, or mend it." if names else nvcc_cure()
        raise BuildError(f"{nvcc} --version names no CUDA release{f', but says: {said[-1]}' if said else ''}. {cure}")
    return int(match[1]), int(match[2])


def check_nvcc() -> None:
    """Whether nvcc fits torch and the GPUs, before a compilation fails on it in words that are harder to read.

    Raises:
        BuildError: another major version than torch's CUDA; or a GPU that this nvcc does not know.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        return
    major, minor = nvcc_release(nvcc)
    if major != int(torch.version.cuda.split(".")[0]):
        names = [name for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
        first = f"Unset {' and '.join(names)}, which names it. " if names else ""
        raise BuildError(f"{nvcc} belongs to CUDA {major}.{minor}, which does not fit. {first}{nvcc_cure()}")
    if " " in str(root := cuda_root(nvcc)):
        raise BuildError(
            f"The CUDA toolkit lies in a folder with a space in its path, {root}, which the link commands of CMake and"
            " torch cannot take. Install it elsewhere (the packages of PyPI: in a virtual environment elsewhere)."
        )
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True).stdout
    known = set(re.findall(r"compute_(\d+)", listed))
    for number in re.findall(r"(\d+)[af]?(?:-real|-virtual)?(?:;|$)", cmake_architectures(arch_list())):
        if known and number not in known:
            raise BuildError(
                f"{nvcc} (CUDA {major}.{minor}) does not know GPUs of compute capability {_dotted(number)}. Install a"
                " newer nvcc; or let it compile for the newest GPU that it knows, and the driver do the rest:"
                f" `export TORCH_CUDA_ARCH_LIST={_dotted(max(known, key=int))}+PTX`."
            )


def _dotted(number: str) -> str:
    return f"{number[:-1]}.{number[-1]}"


def arch_list() -> str | None:
    """The GPUs to compile for, in torch's notation such as "8.0;9.0+PTX". None: PTX for all of them.

    TORCH_CUDA_ARCH_LIST wins; else the GPUs of this machine.
    """
    if given := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return ";".join(re.split(r"[;, ]+", given.strip(" ;,")))  # torch takes no commas, CMake no spaces
    if not torch.cuda.is_available():
        return None
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ";".join(f"{major}.{minor}" for major, minor in sorted(capabilities))


def cmake_architectures(arch_list: str | None) -> str:
    """The same in CMake's notation: "8.0;9.0+PTX" is "80-real;90"."""
    if arch_list is None:
        return "75-virtual"
    architectures = []
    for arch in re.split(r"[;, ]+", arch_list.strip()):
        match = re.fullmatch(r"(\d+)\.(\d+)([af]?)(\+PTX)?", arch)
        if match is None:
            raise BuildError(f"TORCH_CUDA_ARCH_LIST has '{arch}' in it, expected numbers such as 8.0 or 9.0+PTX.")
        major, minor, family, ptx = match.groups()
        architectures.append(major + minor + family + ("" if ptx else "-real"))
    return ";".join(architectures)


def environment() -> dict[str, str]:
    """os.environ for a build, with what torch's cpp_extension reads: PATH, CUDA_HOME, TORCH_CUDA_ARCH_LIST."""
    env = dict(os.environ, PATH=tool_path())
    if not env.get("CXX"):
        env.pop("CXX", None)  # torch takes an empty CXX at its word
    env["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # cpp_extension looks for a GPU; need not start CUDA for it: 0.2 s
    if nvcc := find_nvcc():
        env["CUDA_HOME"] = str(cuda_root(nvcc))
        if archs := arch_list():
            env["TORCH_CUDA_ARCH_LIST"] = archs
        else:
            env.pop("TORCH_CUDA_ARCH_LIST", None)
    return env


@contextlib.contextmanager
def in_build_environment() -> Iterator[None]:
    """That environment in this process, for torch's load(), which reads os.environ; and without the warning by
    cpp_extension that there is no GPU: we have looked for one ourselves."""
    before, logger = dict(os.environ), logging.getLogger("torch.utils.cpp_extension")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        env = environment()
        os.environ.clear()
        os.environ.update(env)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        logger.setLevel(level)
