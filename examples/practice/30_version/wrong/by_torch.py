# A cheat: torch multiplies. The kernel was right, and stands for one that torch does not have.
# check says: a function of torch writes x (aten::mul_
import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("scale_(Tensor(a!) x, float factor) -> ()")


def scale_(x: Tensor, factor: float) -> None:
    x.mul_(factor)


library.impl("scale_", scale_, "CPU")
