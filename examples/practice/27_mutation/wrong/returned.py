# Fast, but wrong: y is also the result. torch.compile refuses that, and the task asks for no result.
# check says: returns nothing
import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("add_scaled_(Tensor(a!) y, Tensor x, float factor) -> Tensor(a!)")


def add_scaled_(y: Tensor, x: Tensor, factor: float) -> Tensor:
    y.add_(x, alpha=factor)
    return y


library.impl("add_scaled_", add_scaled_, "CPU")
