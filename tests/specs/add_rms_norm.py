"""add_rms_norm() of page 14: two results, and a backward operator of its own."""

import sys
from pathlib import Path

import torch

from lab.referee import Operator

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/add_rms_norm"))
import add_rms_norm as lesson

lesson.build()
add_rms_norm = Operator(
    "add_rms_norm::add_rms_norm",
    call=lesson.add_rms_norm,
    reference=lesson.reference,
    inputs=lambda device: (*torch.randn(2, 4, 3, 16, device=device), torch.randn(16, device=device)),
    gradients=(0, 1, 2),
    sizes={"rows": [(0, 0), (1, 0)]},
    wrong={
        r"b is Float\[4, 3, 15\], expected Float\[4, 3, 16\]": {1: lambda b: b[..., 1:]},
        r"weight is Float\[15\], expected Float\[16\]": {2: lambda weight: weight[1:]},
        r"weight is Float\[1, 16\]": {2: lambda weight: weight[None]},
        "b is Double": {1: lambda b: b.double()},
        "weight is Half": {2: lambda weight: weight.half()},
    },
)
