"""The tools that a build needs, and the GPUs to compile for. A missing tool raises Failure, whose text is the cure.
setup.py runs this file, too, to find nvcc, so it imports nothing else of lab."""

import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch


class Failure(RuntimeError):
    """An error that the user can cure. Its text says what was found and what to do; no traceback is needed."""


def check_platform() -> None:
    """Raise Failure where the project is not supported."""
    if sys.platform != "linux":
        raise Failure(f"add2 needs Linux, and this is {sys.platform}. On Windows, WSL 2 is a Linux.")
    if torch.version.hip:
        raise Failure(f"add2 has CUDA and CPU kernels only, and torch {torch.__version__} was built for ROCm.")


def check(compiler: str, *folders: Path) -> None:
    """Raise Failure for what would fail later, in words that are harder to read. folders: those of the build."""
    for folder in (*folders, Path(torch.__file__).parent):
        if found := re.search(r"""[$:;|{}"'\\\n]""", str(folder)):
            raise Failure(f"The path {folder} has {found[0]!r} in it, which ninja or CMake cannot take. Rename it.")
    if not re.fullmatch("[1-9][0-9]*", jobs := os.environ.get("MAX_JOBS") or "1"):
        raise Failure(f"MAX_JOBS is {jobs!r}, expected a number from 1 on. Unset it, or `export MAX_JOBS=1`.")
    host_compiler()
    if nvcc := find_nvcc():
        check_nvcc(nvcc)
    if compiler != "setup":  # which also works without ninja
        require("cmake" if compiler == "cmake" else "ninja")


def tool_path() -> str:
    """PATH for a build: a virtual environment that is called by its path, not activated, has its tools off PATH."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def require(tool: str, cure: str = "") -> str:
    """The path of a tool, or a Failure with the cure; without one, the package of PyPI of that name."""
    if found := shutil.which(tool, path=tool_path()):
        return found
    cure = cure or f"Install it: `python3 -m pip install {tool}`."
    raise Failure(f"{tool} is not installed (it is not on PATH). {cure}")


def host_compiler() -> str:
    """The path of the C++ compiler: CXX, or c++."""
    given = os.environ.get("CXX", "c++")
    if not re.fullmatch(r"""[^\s"']+""", given):
        cure = "Flags go into CXXFLAGS. torch 2.13 and later find ccache on PATH; CMake: CMAKE_CXX_COMPILER_LAUNCHER."
        raise Failure(f"CXX is {given!r}, expected the name of a compiler and no more, such as CXX=g++. {cure}")
    cures = "`sudo apt-get install g++`, `sudo dnf install gcc-c++`, `conda install cxx-compiler`"
    return require(given, f"{cures}, or set CXX to another.{_or_nvrtc()}")


@functools.cache
def find_nvcc() -> Path | None:
    """nvcc, or None where only the CPU part is to be built; where ADD2_WITH_CUDA=1 forbids that, a Failure."""
    wanted = os.environ.get("ADD2_WITH_CUDA")
    found = None if wanted == "0" else look_for_nvcc()
    if wanted == "1" and not found:
        raise Failure(f"ADD2_WITH_CUDA=1, but {cuda_cure()}")
    return found


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
    """Its CUDA version, such as "13.0"; a Failure if that does not fit torch's, or no linker finds its toolkit."""
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True)
    release = re.search(r"release ((\d+)\.\d+)", done.stdout)
    if not release:
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        raise Failure(f"{nvcc} --version says: {said[-1]}. Look at NVCC_PREPEND_FLAGS and NVCC_APPEND_FLAGS, if set.")
    if release[2] != torch.version.cuda.split(".")[0]:
        cure = f"Unset CUDA_HOME and CUDA_PATH, if they name it. {nvcc_cure()}"
        raise Failure(f"{nvcc} belongs to CUDA {release[1]}, which does not fit. {cure}")
    if " " in str(root := cuda_root(nvcc)):
        found = f"The CUDA toolkit lies in a folder with a space in its path, {root}"
        raise Failure(f"{found}, which the link commands of CMake and torch cannot take. Install it elsewhere.")
    return release[1]


def cuda_cure() -> str:
    """Why find_nvcc() found none, and what to do."""
    if os.environ.get("ADD2_WITH_CUDA") == "0":
        return "ADD2_WITH_CUDA=0 is set in the environment; unset it."
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA in it; install a CUDA build: `python3 -m pip install torch`."
    return f"no nvcc is found. {nvcc_cure()}{_or_nvrtc()}"


def nvcc_cure() -> str:
    """How to get the nvcc that fits torch."""
    cuda, pip = torch.version.cuda, ""
    if int(cuda.split(".")[0]) >= 13:  # the wheels of CUDA 12 have no folder that is a toolkit
        names = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
        packages = " ".join(f'"{name}=={cuda}.*"' for name in names)  # one version: they belong together
        pip = f"`python3 -m pip install {packages}`, or "
    return f"torch {torch.__version__} was built with CUDA {cuda}: {pip}set CUDA_HOME to such a toolkit's folder."


def _or_nvrtc() -> str:  # where there is a GPU, the way that needs no compiler
    return " Or use `--compiler nvrtc`, which needs none." if torch.cuda.is_available() else ""


def lack_for_nvrtc() -> str | None:
    """Why the nvrtc build cannot run here, and the cure; None if it can."""
    if torch.version.cuda is None:
        return cuda_cure()
    if not torch.cuda.is_available():
        return "it compiles for the GPU of this machine, and none is found. `nvidia-smi` says if there is a driver."
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.core"):  # an import would take 0.2 s
        return None
    return "the package cuda-core is missing. Install it: `python3 -m pip install cuda-core`."


def arch_list() -> str:
    """The GPUs to compile for, such as "8.0;9.0+PTX": TORCH_CUDA_ARCH_LIST, else those of this machine."""
    if given := os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip(" ;,"):
        return ";".join(re.split(r"[;, ]+", given))  # torch takes no commas, CMake no spaces
    if not torch.cuda.is_available():
        return "7.5+PTX"  # PTX, which the driver of any later GPU finishes compiling as it loads it
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ";".join(f"{major}.{minor}" for major, minor in sorted(capabilities))


def environment() -> dict[str, str]:
    """os.environ for a build, with what torch's cpp_extension and setup.py read, so that all builds find the same."""
    env = os.environ | {"PATH": tool_path(), "ADD2_WITH_CUDA": "0"}
    if nvcc := find_nvcc():
        env |= {"ADD2_WITH_CUDA": "1", "CUDA_HOME": str(cuda_root(nvcc)), "TORCH_CUDA_ARCH_LIST": arch_list()}
    return env
