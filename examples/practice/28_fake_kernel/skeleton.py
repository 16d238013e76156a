"""Exercise 28: see task.md. To grade it: python3 practice.py check 28"""

import torch
from torch import Tensor


@torch.library.custom_op("practice::pair_sums", mutates_args=())
def pair_sums(x: Tensor, y: Tensor) -> Tensor:
    """result[i, j] = x[i] + y[j]. The elements of a column lie next to each other."""
    result = torch.empty(len(y), len(x), dtype=x.dtype, device=x.device).t()
    torch.add(x[:, None], y, out=result)
    return result


@pair_sums.register_fake
def pair_sums_fake(x, y):
    # Here: how do the elements of the real result lie?
    return torch.empty(len(x), len(y), dtype=x.dtype, device=x.device)
