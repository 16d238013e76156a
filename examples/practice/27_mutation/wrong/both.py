# Right, but slow: a compiler copies x before each call, as it is said to be written, too.
# check says: The schema says that y and x are written
import torch
from torch import Tensor


@torch.library.custom_op("practice::add_scaled_", mutates_args={"x", "y"})
def add_scaled_(y: Tensor, x: Tensor, factor: float) -> None:
    y.add_(x, alpha=factor)
