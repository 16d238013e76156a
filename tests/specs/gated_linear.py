"""gated_linear() of page 15: silu(x Wg^T) * (x Wu^T), the two weights in one, 8 rows of each in turn."""

import sys
from pathlib import Path

import torch

from lab.referee import Operator

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/matmul"))
import gated_linear as lesson

lesson.build()
gated_linear = Operator(
    "gated_linear::gated_linear",
    call=lesson.gated_linear,
    reference=lesson.reference,
    inputs=lambda device: (torch.randn(6, 24, device=device), torch.randn(32, 24, device=device)),
    gradients=(0, 1),
    sizes={"rows": [(0, 0)], "columns": [(0, 1), (1, 1)]},
    wrong={
        r"x is Float\[6, 23\], expected Float\[6, 24\]": {0: lambda x: x[:, 1:]},
        r"w is \[8, 24\], expected \[2 H, K\] with H a multiple of 8": {1: lambda w: w[:8]},
        r"w is \[24\]": {1: lambda w: w[0]},
    },
)
