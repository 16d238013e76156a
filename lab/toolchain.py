"""The tools that a build needs, the GPUs to compile for, and the cure where something is missing.

setup.py runs this file, too, to find nvcc, so it imports nothing else of lab.
"""

import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import torch


class Failure(RuntimeError):
    """An error that the user can cure. Its text says what was found and what to do; no traceback is needed."""


# What a tool says (a regular expression), the cause and the cure. docs/troubleshooting.md has these and more.
SYMPTOMS = {
    "undefined symbol|undefined reference": (
        "the library was built against another torch, or without a source file that it needs",
        "rebuild it with `--rebuild`",
    ),
    "[Uu]nknown CUDA arch|[Uu]nsupported gpu architecture|is not defined for option 'gpu-": (
        "torch or nvcc does not know the GPU to compile for",
        "set TORCH_CUDA_ARCH_LIST to GPUs that both know, with +PTX after the last; or install a newer torch or nvcc",
    ),
    "unsupported (GNU|clang) version|host compiler .* not supported": (
        "nvcc refuses the C++ compiler, because it is newer than nvcc supports",
        "install an older one and name it: `CXX=g++-13 NVCC_PREPEND_FLAGS='-ccbin g++-13' python3 time.py ...`",
    ),
    "No space left on device|Disk quota exceeded": (
        "the disk is full",
        "set TORCH_EXTENSIONS_DIR and TMPDIR to folders on another disk",
    ),
    "Read-only file system|Permission denied|Not a directory|File exists|failed to map segment": (
        "the build cannot write there, or no code may run from there (a disk mounted with noexec)",
        "set TORCH_EXTENSIONS_DIR to a folder elsewhere; for setup and cmake, move the project",
    ),
    "Killed|out of memory allocating": (
        "the machine ran out of memory while compiling",
        "set MAX_JOBS=1; then files compile one at a time",
    ),
}


def explain(message: str) -> str | None:
    """The cause and the cure of a tool's error message, in two lines; None if it is none of SYMPTOMS."""
    for symptom, (cause, cure) in SYMPTOMS.items():
        if re.search(symptom, message):
            return f"Cause: {cause}.\nCure: {cure}."
    return None


def tool_path() -> str:
    """PATH for a build: a virtual environment that is called by its path, not activated, has its tools off PATH."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def require(tool: str, cure: str = "") -> str:
    """The path of a tool, or a Failure with the cure; without one, the package of PyPI of that name."""
    found = shutil.which(tool, path=tool_path())
    if not found:
        cure = cure or f"Install it: `python3 -m pip install {tool}`."
        raise Failure(f"{tool} is not installed (it is not on PATH). {cure}")
    return found


def host_compiler() -> str:
    """The path of the C++ compiler: CXX, or c++."""
    cures = "`sudo apt-get install g++`, `sudo dnf install gcc-c++`, `conda install cxx-compiler`"
    return require(os.environ.get("CXX", "c++"), f"{cures}, or set CXX to another.")


def find_nvcc() -> Path | None:
    """nvcc, or None where only the CPU part is to be built."""
    return None if os.environ.get("ADD2_WITH_CUDA") == "0" else look_for_nvcc()


def look_for_nvcc() -> Path | None:
    """In CUDA_HOME and CUDA_PATH; among Python's packages; on PATH; in /usr/local/cuda and /usr/local/cuda-*."""
    # torch 2.10 to 2.15 do not look among the packages (https://github.com/pytorch/pytorch/pull/197483).
    if not torch.version.cuda:
        return None
    major, spec = torch.version.cuda.split(".")[0], importlib.util.find_spec("nvidia")
    folders = [f"{home}/bin" for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    folders += [f"{folder}/cu{major}/bin" for folder in spec.submodule_search_locations or ()] if spec else []
    folders += [os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"]
    folders += sorted(glob.glob(f"/usr/local/cuda-{major}*/bin"), reverse=True)
    found = shutil.which("nvcc", path=os.pathsep.join(folders))
    return Path(found) if found else None


@functools.cache
def cuda_root(nvcc: Path) -> Path:
    """The folder of an nvcc's toolkit. Not simply its grandparent, as torch takes it: /usr/local/bin/nvcc is often a
    script that starts the nvcc of a toolkit elsewhere. nvcc itself knows: --dryrun prints TOP."""
    dryrun = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", dryrun.stderr, re.MULTILINE)
    return Path(top[1].strip()).resolve() if top else nvcc.resolve().parents[1]


def check_nvcc(nvcc: Path) -> str:
    """Its CUDA version, such as "13.0"; a Failure if that does not fit torch's."""
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True)
    release = re.search(r"release ((\d+)\.\d+)", done.stdout) or ["", done.stdout + done.stderr, "unknown"]
    if release[2] != torch.version.cuda.split(".")[0]:
        cure = f"Unset CUDA_HOME and CUDA_PATH, if they name it. {nvcc_cure()}"
        raise Failure(f"{nvcc} belongs to CUDA {release[1]}, which does not fit. {cure}")
    return release[1]


def cuda_cure() -> str:
    """Why find_nvcc() found none, and what to do."""
    if os.environ.get("ADD2_WITH_CUDA") == "0":
        return "ADD2_WITH_CUDA=0 is set in the environment; unset it."
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA in it; install a CUDA build: `python3 -m pip install torch`."
    return f"no nvcc is found. {nvcc_cure()}"


def nvcc_cure() -> str:
    """How to get the nvcc that fits torch."""
    cuda, pip = torch.version.cuda, ""
    if int(cuda.split(".")[0]) >= 13:  # the wheels of CUDA 12 have no folder that is a toolkit
        names = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
        packages = " ".join(f'"{name}=={cuda}.*"' for name in names)  # one version: they belong together
        pip = f"`python3 -m pip install {packages}`, or "
    return f"torch {torch.__version__} was built with CUDA {cuda}: {pip}set CUDA_HOME to such a toolkit's folder."


def arch_list() -> str:
    """The GPUs to compile for, such as "8.0;9.0+PTX": TORCH_CUDA_ARCH_LIST, else those of this machine."""
    if given := os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip(" ;,"):
        return ";".join(re.split(r"[;, ]+", given))  # torch takes no commas, CMake no spaces
    if not torch.cuda.is_available():
        return "7.5+PTX"  # PTX, which the driver of any later GPU finishes compiling as it loads it
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ";".join(f"{major}.{minor}" for major, minor in sorted(capabilities))


def environment() -> dict[str, str]:
    """os.environ for a build, with what torch's cpp_extension reads, so that all builds find the same."""
    env = os.environ | {"PATH": tool_path()}
    if nvcc := find_nvcc():
        env |= {"CUDA_HOME": str(cuda_root(nvcc)), "TORCH_CUDA_ARCH_LIST": arch_list()}
    return env
