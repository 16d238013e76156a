"""The setup build: setuptools reads setup.py in the project's folder and leaves add2/_C.abi3.so. In a shell:

python3 setup.py build_ext --inplace
"""

import sys
from pathlib import Path

from . import commands, toolchain


def recipe(binding: str, folder: Path = Path("FOLDER")) -> tuple[list[list[str]], dict[str, str]]:
    """The command, and the environment variables for it. Nothing is installed: that is the user's `pip install`."""
    # In a new folder, not --inplace: ninja, which setup.py runs, compares times, not content, and would not compile a
    # file that was put back with its old time.
    command = [sys.executable, "setup.py", "build_ext", "--build-temp", f"{folder}/objects", "--build-lib", str(folder)]
    with_cuda = toolchain.find_nvcc() is not None
    return [command], {"ADD2_BINDING": binding, "ADD2_WITH_CUDA": str(int(with_cuda))}


def build(folder: Path, binding: str, log: Path) -> tuple[Path, list[str]]:
    """The library, and the commands that ran."""
    ran = commands.run(*recipe(binding, folder), log)
    [library] = folder.glob("add2/*.so")
    return library, ran
