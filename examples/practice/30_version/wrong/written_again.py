# Right, but slow: writes all of x once more, to let torch raise the version.
# check says: a function of torch writes x
import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("scale_(Tensor(a!) x, float factor) -> ()")


def scale_(x: Tensor, factor: float) -> None:
    memory = x.detach().numpy()  # stands for a kernel, which gets an address and writes there
    memory *= factor
    x.mul_(1)


library.impl("scale_", scale_, "CPU")
