# A cheat: writes by an address, so that torch does not see it. The schema still lies.
# check says: writes:
import torch
from torch import Tensor


@torch.library.custom_op("practice::add_scaled_", mutates_args=())
def add_scaled_(y: Tensor, x: Tensor, factor: float) -> None:
    memory = y.detach().numpy()
    memory += factor * x.detach().numpy()
