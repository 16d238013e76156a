"""Exercise 27: see task.md. To grade it: python3 practice.py check 27"""

import torch
from torch import Tensor


# Here: what does this line say about y?
@torch.library.custom_op("practice::add_scaled_", mutates_args=())
def add_scaled_(y: Tensor, x: Tensor, factor: float) -> None:
    y.add_(x, alpha=factor)
