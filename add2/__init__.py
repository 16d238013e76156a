"""add2: c = a + b for float tensors, as a custom CUDA operator of PyTorch.

Importing this package makes `torch.ops.add2` available. It loads the library that `setup.py` built beside this file,
unless another build (jit, cmake) has registered the operator in this process already: an operator can be registered
only once.
"""

from pathlib import Path

import torch  # first: it loads libtorch.so and libc10.so, which the library below is linked to

if not hasattr(torch.ops.add2, "add2"):
    _library = Path(__file__).with_name("_C.abi3.so")
    if not _library.exists():
        raise ImportError(
            f"add2 is not built: {_library} does not exist. Build it with\n"
            "    python3 -m pip install --no-build-isolation -e .\n"
            "in the project's folder, or load another build first: lab.compilers.load('jit')."
        )
    torch.ops.load_library(_library)

from .ops import add2, torch_launch_add2

__all__ = ["add2", "torch_launch_add2"]
