"""add2: a custom CUDA operator for PyTorch."""

from pathlib import Path

import torch  # first: it loads libtorch.so, which the library below is linked to

if not hasattr(torch.ops.add2, "add2"):  # an operator can be registered only once in a process
    if not (_library := Path(__file__).with_name("_C.abi3.so")).exists():
        raise ImportError(f"There is no {_library}. Build it: `BUILD_COMMAND`")
    torch.ops.load_library(_library)

from .ops import add2, torch_launch_add2  # noqa: F401
