# A cheat: says that x has changed, and leaves it.
# check says: values:
import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("scale_(Tensor(a!) x, float factor) -> ()")


def scale_(x: Tensor, factor: float) -> None:
    torch.autograd.graph.increment_version(x)


library.impl("scale_", scale_, "CPU")
