"""The nvrtc build: no nvcc, no C++ compiler, nothing on disk. It needs a GPU, and the package cuda-core.

add2/nvrtc.py is the whole operator; NVRTC compiles the kernels of a dtype when they are first called. By hand: set
ADD2_NVRTC=1 before the first `import add2`.
"""

import os
import sys

import torch

from . import toolchain


def build() -> None:
    """Compile for this machine's GPU and float32: what is missing, or a mistake in the kernels, is a Failure now."""
    if reason := toolchain.lack_for_nvrtc():
        raise toolchain.Failure(reason)
    os.environ["ADD2_NVRTC"] = "1"
    from add2 import nvrtc as add2_nvrtc

    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    print(f"compiling kernel/add2_kernel.cuh with NVRTC for {arch} ...", file=sys.stderr)
    try:
        add2_nvrtc.compile(arch, torch.float32)
    except Exception as error:  # cuda.core's, which has no public name
        raise toolchain.Failure(str(error).strip(" \n\0")) from error
