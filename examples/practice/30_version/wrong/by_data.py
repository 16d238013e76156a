# Fast, but wrong: x.data is written by torch, but has a version of its own.
# check says: version:
import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("scale_(Tensor(a!) x, float factor) -> ()")


def scale_(x: Tensor, factor: float) -> None:
    memory = x.detach().numpy()  # stands for a kernel, which gets an address and writes there
    memory *= factor
    x.data.mul_(1)


library.impl("scale_", scale_, "CPU")
