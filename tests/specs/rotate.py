"""rotate() of examples/rope: x is rotated by its position. The tables have a gradient only under torch.func."""

import sys
from pathlib import Path

import torch

from lab.referee import Operator

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/rope"))
import rope

rotate = Operator(
    "rope::rotate",
    call=rope.rotate,
    reference=rope.by_torch,
    inputs=lambda device: (
        torch.randn(2, 4, 6, 16, device=device),
        *(torch.randn(6, 8, device=device) for _ in ("cos", "sin")),
    ),
    gradients=(0,),
    sizes={"tokens": [(0, 2), (1, 0), (2, 0)]},
    wrong={
        "x is Double": {0: lambda x: x.double()},
        r"x has shape \[4, 6, 16\]": {0: lambda x: x[0]},
        r"cos is Float\[5, 8\], expected Float\[6, 8\]": {1: lambda cos: cos[1:]},
        r"sin is Float\[6, 7\]": {2: lambda sin: sin[:, 1:]},
    },
)
