"""Exercise 30: see task.md. To grade it: python3 practice.py check 30"""

import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("scale_(Tensor(a!) x, float factor) -> ()")


def scale_(x: Tensor, factor: float) -> None:
    memory = x.detach().numpy()  # stands for a kernel, which gets an address and writes there
    memory *= factor
    # Here: who tells autograd that x has changed?


library.impl("scale_", scale_, "CPU")
