# Fast, but wrong: names the argument that is read.
# check says: writes:
import torch
from torch import Tensor


@torch.library.custom_op("practice::add_scaled_", mutates_args={"x"})
def add_scaled_(y: Tensor, x: Tensor, factor: float) -> None:
    y.add_(x, alpha=factor)
