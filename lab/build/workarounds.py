"""Faults of torch and of NVIDIA's packages that the jit build meets on some machines; each can be deleted one day.
With an ordinary toolkit torch needs none of this. nvcc.cmake has the workarounds for CMake."""

import os
import shlex
from pathlib import Path


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
