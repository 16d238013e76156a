"""The tools that a build needs, and the GPUs to compile for. It imports nothing of lab: setup.py runs it, too."""

import functools
import glob
import importlib.metadata
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


def tool_path() -> str:
    """PATH for a build: a virtual environment that is called by its path, not activated, has its tools off PATH."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def require(tool: str, cure: str = "") -> str:
    """The path of a tool, or a Failure with the cure; without one, the package of PyPI of that name."""
    found = shutil.which(tool, path=tool_path())
    if not found:
        cure = cure or f"Install it: `python3 -m pip install {tool}`."
        raise Failure(f"{tool} is not installed (PATH has no such program). {cure}")
    return found


def host_compiler() -> str:
    """The path of the C++ compiler: CXX, or c++. A Failure if it cannot compile three lines."""
    named = os.environ.get("CXX", "c++")
    if len(named.split()) != 1 and not shutil.which(named):
        cure = "Unset it, or set CXX=g++: torch 2.13 and later call ccache themselves. For other words write a script."
        raise Failure(f"CXX is {named!r}, expected the name of one program: torch quotes it as one word. {cure}")
    cures = "`sudo apt-get install g++`, `sudo dnf install gcc-c++`, `conda install cxx-compiler`"
    cures += ", or set CXX to the name of another program."
    compiler = require(named, cures)
    command, code = [compiler, "-fsyntax-only", "-x", "c++", "-"], "#include <cstdint>\n\nint32_t number;\n"
    done = subprocess.run(command, input=code, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{done.stderr}\n{compiler} cannot compile three lines of C++. Cure: {cures}".strip())
    return compiler


def check_setuptools() -> str:
    """The version of setuptools; a Failure if pyproject.toml needs a later one."""
    needed = re.search(r"setuptools>=(\d+)", Path(__file__).resolve().parents[1].joinpath("pyproject.toml").read_text())
    found = importlib.metadata.version("setuptools")
    if needed and int(found.split(".")[0]) < int(needed[1]):
        cure = f'`python3 -m pip install --upgrade "{needed[0]}"`'
        raise Failure(f"setuptools is {found}, expected {needed[1]} or later for setup.py. Cure: {cure}")
    return found


def find_nvcc() -> Path | None:
    """nvcc, or None where only the CPU part is to be built."""
    # torch 2.10 to 2.15 do not look among the packages (https://github.com/pytorch/pytorch/pull/197483).
    if os.environ.get("ADD2_WITH_CUDA") == "0" or not torch.version.cuda:
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
    if release[2] != (torch.version.cuda or "").split(".")[0]:
        cure = f"Unset CUDA_HOME and CUDA_PATH, if they name it. {cuda_cure()}"
        raise Failure(f"{nvcc} belongs to CUDA {release[1]}, which does not fit. {cure}")
    return release[1]


def cuda_cure() -> str:
    """Why find_nvcc() found none, or none that fits, and what to do."""
    if os.environ.get("ADD2_WITH_CUDA") == "0":
        return "ADD2_WITH_CUDA=0 is set in the environment; unset it."
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA in it; install a CUDA build: `python3 -m pip install torch`."
    cuda, pip = torch.version.cuda, ""
    if cuda >= "13":  # the wheels of CUDA 12 have no folder that is a toolkit
        names = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
        packages = " ".join(f'"{name}=={cuda}.*"' for name in names)  # one version: they belong together
        pip = f"`python3 -m pip install {packages}`, or "
    why = f"torch {torch.__version__} was built with CUDA {cuda}, and no nvcc is found that fits"
    return f"{why}: {pip}set CUDA_HOME to such a toolkit's folder."


def arch_list() -> str:
    """The GPUs to compile for, such as "8.0;9.0+PTX": TORCH_CUDA_ARCH_LIST, else those of this machine."""
    if given := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return given
    if not torch.cuda.is_available():
        return "7.5+PTX"  # PTX, which the driver of any later GPU finishes compiling as it loads it
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ";".join(f"{major}.{minor}" for major, minor in sorted(capabilities))


def environment() -> dict[str, str]:
    """os.environ for a build, with what torch's cpp_extension reads, so that all builds find the same."""
    env = os.environ | {"PATH": tool_path()}
    jobs = env.get("MAX_JOBS") or "1"
    if not jobs.isdecimal() or int(jobs) == 0:
        raise Failure(f"MAX_JOBS is {jobs!r}, expected the number of files to compile at once. Unset it for all cores.")
    try:
        if nvcc := find_nvcc():
            check_nvcc(nvcc)
            env |= {"CUDA_HOME": str(cuda_root(nvcc)), "TORCH_CUDA_ARCH_LIST": arch_list()}
    except Failure as misfit:
        if torch.cuda.is_available() or env.get("ADD2_WITH_CUDA") == "1":
            raise
        print(f"only the CPU part will be built: {misfit}", file=sys.stderr)
        env["ADD2_WITH_CUDA"] = "0"
    return env
