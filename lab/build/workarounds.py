"""Workarounds for the jit build, each for one fault of torch or of NVIDIA's packages, and each to be deleted one day.

toolkit.py has the one that setup.py needs as well, and nvcc.cmake the one for CMake.
"""

import os
import shlex
from pathlib import Path

import torch


def apply(folder: Path, name: str) -> None:
    """All of them, for a build in `folder`. os.environ is the build's own (toolchain.in_build_environment)."""
    cuda_home_of_today()
    torch_in_a_path_with_spaces()
    name_is_loaded_again(name)
    libcudart_of_pypi(folder)


def cuda_home_of_today() -> None:
    """cpp_extension reads CUDA_HOME once, when it is imported, which may have been long before this build.

    Needed by all versions up to 2.15.
    """
    from torch.utils import cpp_extension

    if home := os.environ.get("CUDA_HOME"):
        cpp_extension.CUDA_HOME = home


def torch_in_a_path_with_spaces() -> None:
    """torch quotes its -I flags, but not its -L flags, so a space in the path of a virtual environment breaks the link.

    Needed by torch 2.10 to 2.15. https://github.com/pytorch/pytorch/issues/122476 mended the -I flags only.
    """
    from torch.utils import cpp_extension

    cpp_extension.TORCH_LIB_PATH = shlex.quote(str(Path(torch.__file__).parent / "lib"))


def name_is_loaded_again(name: str) -> None:
    """torch counts the loads of a name in a process, and calls the library of the second one add2_v1, then add2_v2.

    Needed by all versions: https://github.com/pytorch/pytorch/pull/11725 wants it so. Here each build has a folder of
    its own, and an operator can be registered only once.
    """
    from torch.utils import cpp_extension

    cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(name, None)


def libcudart_of_pypi(folder: Path) -> None:
    """torch links with -lcudart, though our library uses the static one. nvidia-cuda-runtime has only libcudart.so.13,
    a name that the linker does not look for. Give it a link with that name.

    Needed by nvidia-cuda-runtime 13.0 to 13.2 with every torch; we know of no issue.
    """
    home = os.environ.get("CUDA_HOME")
    if home and not any(Path(home).glob("lib*/libcudart.so")):
        for library in Path(home).glob("lib/libcudart.so.*"):
            (folder / "libcudart.so").symlink_to(library)
        paths = [str(folder), os.environ.get("LIBRARY_PATH", "")]
        os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
