# Right, but slow: copies all rows, and keeps their memory.
# check says: holds
import torch
from torch import Tensor

library = torch.library.Library("practice", "FRAGMENT")
library.define("first_rows(Tensor x, int n) -> Tensor")


def first_rows(x: Tensor, n: int) -> Tensor:
    return x.clone()[:n]


library.impl("first_rows", first_rows, "CompositeExplicitAutograd")
