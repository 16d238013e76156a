"""Where the CUDA toolkit is. Needs neither torch nor the rest of lab: setup.py runs this file, too.

An ordinary toolkit, whose bin/ is on PATH, torch finds by itself. It misses the packages of PyPI (torch 2.10 to 2.15;
https://github.com/pytorch/pytorch/pull/197483), and an nvcc on PATH that is a script in front of the real one.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path


def find_nvcc(major: str) -> Path | None:
    """nvcc for CUDA `major`, or None. Looked for in CUDA_HOME and CUDA_PATH, among Python's packages (they were
    installed into this environment on purpose), on PATH, and in /usr/local/cuda and /usr/local/cuda-*."""
    places = [Path(home, "bin", "nvcc") for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    if spec := importlib.util.find_spec("nvidia"):  # nvidia-cuda-nvcc leaves nvidia/cu13/bin/nvcc
        places += [Path(folder, f"cu{major}", "bin", "nvcc") for folder in spec.submodule_search_locations or ()]
    places += [Path(found)] if (found := shutil.which("nvcc")) else []
    homes = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob(f"cuda-{major}*"), reverse=True)]
    return next((place for place in [*places, *(home / "bin" / "nvcc" for home in homes)] if place.exists()), None)


@functools.cache
def cuda_root(nvcc: Path) -> Path:
    """The toolkit that an nvcc belongs to: the folder with bin/ and include/.

    Not simply nvcc's grandparent: /usr/local/bin/nvcc is often a script that starts the nvcc of a toolkit elsewhere.
    nvcc itself knows: --dryrun prints TOP.
    """
    dryrun = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", dryrun.stderr, re.MULTILINE)
    return Path(top[1].strip()).resolve() if top else nvcc.resolve().parent.parent


def set_cuda_home(major: str) -> None:
    """Set CUDA_HOME, which torch.utils.cpp_extension reads when it is imported, unless it is set."""
    if not os.environ.get("CUDA_HOME") and (nvcc := find_nvcc(major)):
        os.environ["CUDA_HOME"] = str(cuda_root(nvcc))
