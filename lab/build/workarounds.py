"""Workarounds for faults of torch, NVIDIA's packages and odd machines; each can be deleted one day.

With an ordinary toolkit, whose bin/ is on PATH, torch needs none of them. setup.py runs this file, too, so it needs
nothing else of lab. nvcc.cmake has the workarounds for CMake.
"""

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path


def find_nvcc(major: str) -> Path | None:
    """nvcc for CUDA `major`, or None. Looked for in CUDA_HOME and CUDA_PATH, among Python's packages (they were
    installed into this environment on purpose), on PATH, and in /usr/local/cuda and /usr/local/cuda-*.

    torch 2.10 to 2.15 do not look among the packages (https://github.com/pytorch/pytorch/pull/197483).
    """
    places = [Path(home, "bin", "nvcc") for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    if spec := importlib.util.find_spec("nvidia"):  # nvidia-cuda-nvcc leaves nvidia/cu13/bin/nvcc
        places += [Path(folder, f"cu{major}", "bin", "nvcc") for folder in spec.submodule_search_locations or ()]
    places += [Path(found)] if (found := shutil.which("nvcc")) else []
    homes = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob(f"cuda-{major}*"), reverse=True)]
    return next((place for place in [*places, *(home / "bin" / "nvcc" for home in homes)] if place.exists()), None)


@functools.cache
def cuda_root(nvcc: Path) -> Path:
    """The toolkit that an nvcc belongs to: the folder with bin/ and include/.

    Not simply nvcc's grandparent, as torch takes it: /usr/local/bin/nvcc is often a script that starts the nvcc of a
    toolkit elsewhere. nvcc itself knows: --dryrun prints TOP.
    """
    dryrun = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", dryrun.stderr, re.MULTILINE)
    return Path(top[1].strip()).resolve() if top else nvcc.resolve().parent.parent


def set_cuda_home(major: str) -> None:
    """For setup.py: set CUDA_HOME, which torch.utils.cpp_extension reads when it is imported, unless it is set."""
    if not os.environ.get("CUDA_HOME") and (nvcc := find_nvcc(major)):
        os.environ["CUDA_HOME"] = str(cuda_root(nvcc))


def for_jit(folder: Path) -> None:
    """For torch's load(), which builds in `folder`. os.environ is the build's own (toolchain.environment)."""
    from torch.utils import cpp_extension

    # A space in the path of a virtual environment: torch quotes its -I flags, but not its -L flags. Needed by torch
    # 2.10 to 2.15; https://github.com/pytorch/pytorch/issues/122476 mended the -I flags only.
    cpp_extension.TORCH_LIB_PATH = shlex.quote(str(Path(cpp_extension.__file__).parents[1] / "lib"))
    if not (home := os.environ.get("CUDA_HOME")):
        return
    # cpp_extension reads CUDA_HOME once, when it is imported, which may have been long before. Needed by all versions.
    cpp_extension.CUDA_HOME = home
    # torch links with -lcudart, though our library uses the static one. nvidia-cuda-runtime 13.0 to 13.2 has only
    # libcudart.so.13, a name that the linker does not look for. Give it a link with that name. We know of no issue.
    if not any(Path(home).glob("lib*/libcudart.so")):
        for library in Path(home).glob("lib/libcudart.so.*"):
            (folder / "libcudart.so").symlink_to(library)
        os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("LIBRARY_PATH")]))
