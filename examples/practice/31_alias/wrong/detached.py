# Fast, but wrong: without a gradient, but still the same memory.
# check says: aliases:
import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("first_rows(Tensor x, int n) -> Tensor")


def first_rows(x: Tensor, n: int) -> Tensor:
    return x.detach()[:n]


library.impl("first_rows", first_rows, "CompositeExplicitAutograd")
