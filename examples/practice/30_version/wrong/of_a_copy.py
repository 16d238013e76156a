# Fast, but wrong: raises the version of a copy, which nobody has saved.
# check says: version:
import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("scale_(Tensor(a!) x, float factor) -> ()")


def scale_(x: Tensor, factor: float) -> None:
    memory = x.detach().numpy()  # stands for a kernel, which gets an address and writes there
    memory *= factor
    torch.autograd.graph.increment_version(x.clone())


library.impl("scale_", scale_, "CPU")
