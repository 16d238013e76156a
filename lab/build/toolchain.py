"""Where nvcc, c++, ninja and cmake are, and for which GPUs to compile.

Each question has one function; a tool that is missing and needed raises BuildError, whose text is the cure.
"""

import contextlib
import functools
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch

from .. import Failure

# No GPU in sight: compile to PTX, which the driver of any GPU since sm_75 (Turing) finishes compiling as it loads it.
PTX_FOR_ALL = "-gencode=arch=compute_75,code=compute_75"


class BuildError(Failure):
    """A build that did not work."""


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
    return require(
        shlex.split(os.environ.get("CXX") or "c++")[0],  # CXX may be "ccache g++"
        "A C++ compiler is needed: `sudo apt-get install g++` (Debian, Ubuntu), `sudo dnf install gcc-c++` (Fedora), "
        "`conda install cxx-compiler`; or set CXX to the one you have.",
    )


@functools.cache
def find_nvcc() -> Path | None:
    """nvcc, or None where the CPU part is to be built alone: torch without CUDA, no toolkit, or ADD2_WITH_CUDA=0.

    Looked for in CUDA_HOME and CUDA_PATH, among Python's packages (whoever has installed one there wants it), on PATH,
    and in /usr/local/cuda and its kin of torch's CUDA.
    """
    wanted = os.environ.get("ADD2_WITH_CUDA", "")
    if wanted == "0" or torch.version.cuda is None:
        return None
    places = [Path(home, "bin", "nvcc") for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    major = torch.version.cuda.split(".")[0]
    if spec := importlib.util.find_spec("nvidia"):  # what nvidia-cuda-nvcc of PyPI leaves: nvidia/cu13/bin/nvcc
        places += [Path(folder, f"cu{major}", "bin", "nvcc") for folder in spec.submodule_search_locations or ()]
    places += [Path(found)] if (found := shutil.which("nvcc")) else []
    homes = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob(f"cuda-{major}*"), reverse=True)]
    for place in [*places, *(home / "bin" / "nvcc" for home in homes)]:
        if place.exists():
            return place
    if wanted == "1":
        raise BuildError(f"ADD2_WITH_CUDA=1, but {cuda_cure()}")
    return None


def cuda_cure() -> str:
    """Why find_nvcc() found none, and what to do."""
    if os.environ.get("ADD2_WITH_CUDA") == "0":
        return "ADD2_WITH_CUDA=0 is set in the environment; unset it."
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA in it; install a CUDA build: `python3 -m pip install torch`."
    return f"no nvcc is found. {nvcc_cure()}"


def nvcc_cure() -> str:
    """How to get the nvcc that fits torch."""
    cuda = torch.version.cuda or ""
    if int(cuda.split(".")[0]) < 13:  # the wheels of CUDA 12 have no folder that is a toolkit
        found = f"torch {torch.__version__} was built with CUDA {cuda}"
        return f"{found}: install that toolkit, and set CUDA_HOME to its folder."
    packages = " ".join(f'"{name}=={cuda}.*"' for name in ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm"))
    return (
        f"torch {torch.__version__} was built with CUDA {cuda}: `python3 -m pip install {packages} nvidia-cuda-runtime"
        f" nvidia-cuda-cccl`, or set CUDA_HOME to the folder of a CUDA {cuda.split('.')[0]} toolkit."
    )


@functools.cache
def nvcc_release(nvcc: Path) -> tuple[int, int]:
    """The CUDA version of an nvcc, such as (13, 0)."""
    try:
        output = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    except OSError as error:
        raise BuildError(f"{nvcc} does not run: {error.strerror}. {nvcc_cure()}") from error
    match = re.search(r"release (\d+)\.(\d+)", output)
    if match is None:
        raise BuildError(f"{nvcc} --version names no CUDA release. {nvcc_cure()}")
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
        raise BuildError(f"{nvcc} is of CUDA {major}.{minor}, which does not fit. {first}{nvcc_cure()}")
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
                f"{nvcc} of CUDA {major}.{minor} does not know GPUs of compute capability {_dotted(number)}. Install a"
                " newer nvcc; or let it compile for the newest GPU that it knows, and the driver do the rest:"
                f" `export TORCH_CUDA_ARCH_LIST={_dotted(max(known, key=int))}+PTX`."
            )


def _dotted(number: str) -> str:
    return f"{number[:-1]}.{number[-1]}"


@functools.cache
def cuda_root(nvcc: Path) -> Path:
    """The toolkit that an nvcc belongs to: the folder with bin/, include/ and lib64/.

    Not simply nvcc's grandparent: /usr/local/bin/nvcc is often a wrapper script that starts the nvcc of a toolkit
    elsewhere, and torch, which takes the grandparent, then finds no headers. nvcc itself knows: --dryrun prints TOP.
    """
    dryrun = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True)
    for line in dryrun.stderr.splitlines():
        if match := re.match(r"#\$ TOP=(.+)", line):
            return Path(match[1].strip()).resolve()
    return nvcc.resolve().parent.parent


def provide_libcudart(folder: Path) -> None:
    """torch's jit build links with -lcudart, though nothing of it is used. A toolkit of PyPI's wheels has the library
    under the name libcudart.so.13 only; then put a link to it, with the name that the linker looks for, in `folder`."""
    home = Path(os.environ["CUDA_HOME"])
    if not any(home.glob("lib*/libcudart.so")):
        for library in home.glob("lib/libcudart.so.*"):
            (folder / "libcudart.so").symlink_to(library)


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
