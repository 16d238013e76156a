# Fast, but wrong: the schema tells the truth, but the caller asked for y to be written.
# check says: values:
import torch
from torch import Tensor


@torch.library.custom_op("practice::add_scaled_", mutates_args=())
def add_scaled_(y: Tensor, x: Tensor, factor: float) -> Tensor:
    return y + factor * x
