"""The operators of page 2: the referee has to find each mistake of the careless ones that a call can show."""

import importlib.util
import sys
from pathlib import Path

import torch

from lab.referee import Operator

path = Path(__file__).parents[2] / "examples/mistakes/mistakes.py"
spec = importlib.util.spec_from_file_location("mistakes_operators", path)
sys.modules[spec.name] = mistakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mistakes)  # builds them

sums = {
    "inputs": lambda device: (torch.randn(4, 3, device=device), torch.randn(4, 3, device=device)),
    "reference": torch.add,
    "gradients": (0, 1),
}
careless = Operator("mistakes::careless", **sums)
careful = Operator("mistakes::careful", **sums)
mirrors = {
    "inputs": lambda device: (torch.zeros(6, device=device), torch.randn(6, device=device)),
    "reference": lambda c, a: a + a.flip(0),
}
careless_mirror = Operator("mistakes::careless_mirror", **mirrors)
careful_mirror = Operator("mistakes::careful_mirror", **mirrors)
