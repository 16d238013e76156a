"""The smallest operator of page 1: float32 and contiguous, with an ordinary gradient."""

import importlib.util
import sys
from pathlib import Path

import torch

from lab.referee import Operator

path = Path(__file__).parents[2] / "examples/minimal/minimal.py"
spec = importlib.util.spec_from_file_location("minimal_operator", path)
sys.modules[spec.name] = minimal = importlib.util.module_from_spec(spec)  # torch.compile looks there
spec.loader.exec_module(minimal)  # builds it

add = Operator(
    "minimal::add",
    call=minimal.add,
    inputs=lambda device: [torch.randn(4, 3, device=device) for _ in "ab"],
    reference=torch.add,
    gradients=(0, 1),
    wrong={
        "differ in shape": {1: lambda b: b[1:]},
        "expected float32": {1: lambda b: b.double()},
        "and contiguous": {0: lambda a: a.t(), 1: lambda b: b.t()},
    },
)
