"""The tools that a build needs, and the GPUs to compile for. It imports nothing of lab: setup.py runs it, and lessons
take it for their own builds."""

import contextlib
import functools
import glob
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from filelock import FileLock  # torch depends on it


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


@contextlib.contextmanager
def torch_load(name: str, rebuild: bool = False) -> Iterator[tuple[Path, Path | None, list[str]]]:
    """Prepare a call of torch.utils.cpp_extension.load(name, ...), and let no other process build `name` meanwhile.

    Yields the folder that load() builds in (emptied first if `rebuild`), nvcc or None, and flags for the linker.
    """
    from torch.utils import cpp_extension  # setup.py sets CUDA_HOME before that is imported

    # load() reads the environment. What is compiled later in this process may want other GPUs.
    with mock.patch.dict(os.environ, environment()):
        nvcc, link = find_nvcc(), []
        # A space in the path of a virtual environment: torch 2.10 to 2.15 quote their -I flags, not their -L flags.
        cpp_extension.TORCH_LIB_PATH = shlex.quote(str(Path(torch.__file__).parent / "lib"))
        # It was read at import, which may have been long before.
        cpp_extension.CUDA_HOME = os.environ.get("CUDA_HOME") or cpp_extension.CUDA_HOME
        folder = Path(cpp_extension._get_build_directory(name, verbose=False))
        with FileLock(folder.with_name(f"{name}.lock")):
            if rebuild:
                shutil.rmtree(folder)
                folder.mkdir()
            # load() of torch up to 2.13 waits for this file forever, whether a killed build has left it or a later
            # torch, which locks the file and leaves it (https://github.com/pytorch/pytorch/issues/189245).
            (folder / "lock").unlink(missing_ok=True)
            # torch links with -lcudart; nvidia-cuda-runtime of PyPI has libcudart.so.13, but no libcudart.so.
            if nvcc and not list((root := cuda_root(nvcc)).glob("lib*/libcudart.so")):
                (folder / "libcudart.so").unlink(missing_ok=True)
                (folder / "libcudart.so").symlink_to(next(root.glob("lib/libcudart.so.*")))
                link = [f"-L{shlex.quote(str(folder))}"]
            yield folder, nvcc, link
