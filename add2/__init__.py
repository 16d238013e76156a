"""add2: c = a + b for float tensors, as a custom CUDA operator of PyTorch.

Importing it loads the library that setup.py built in this folder, unless another build (jit, cmake) has registered
the operator in this process already: an operator can be registered only once.
"""

from pathlib import Path

import torch  # first: it loads libtorch.so and libc10.so, which the library below is linked to

if not hasattr(torch.ops.add2, "add2"):
    if not (_library := Path(__file__).with_name("_C.abi3.so")).exists():
        cures = "`python3 -m pip install --no-build-isolation -e .` in its folder, or lab.build.load('jit') first"
        raise ImportError(f"add2 is not built: there is no {_library}. Build it: {cures}")
    torch.ops.load_library(_library)

__version__ = "0.1.0"
_found = torch.ops.add2.version() if hasattr(torch.ops.add2, "version") else "an older one"
if _found != __version__:
    raise ImportError(f"add2 {__version__} cannot use the library that is loaded, of version {_found}: build it again")

from .ops import add2, torch_launch_add2  # noqa: E402

# isort: split
from .fast import add2, torch_launch_add2  # noqa: E402, F811  (only faster: the file can go, and this line with it)

__all__ = ["add2", "torch_launch_add2"]
