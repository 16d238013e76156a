"""Exercise 31: see task.md. To grade it: python3 practice.py check 31"""

import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("first_rows(Tensor x, int n) -> Tensor")


def first_rows(x: Tensor, n: int) -> Tensor:
    return x[:n]  # Here: is this memory new?


library.impl("first_rows", first_rows, "CompositeExplicitAutograd")
