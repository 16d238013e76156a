# A cheat: refuses each batch but the simplest.
# check says: the rule raises an error: add_outer: expected a batch
import torch
from torch import Tensor


@torch.library.custom_op("practice::add_outer", mutates_args=())
def add_outer(x: Tensor, y: Tensor) -> Tensor:
    """result[i, j] = x[i] + y[j]"""
    assert x.dim() == y.dim() == 1, f"expected x[i] and y[j], got {x.dim()} and {y.dim()} dimensions"
    return x[:, None] + y


@torch.library.custom_op("practice::add_outer_of_many", mutates_args=())
def add_outer_of_many(x: Tensor, y: Tensor) -> Tensor:
    """result[b, i, j] = x[b, i] + y[b, j], in one call"""
    assert x.dim() == y.dim() == 2, f"expected x[b, i] and y[b, j], got {x.dim()} and {y.dim()} dimensions"
    assert len(x) == len(y), f"expected batches of equal size, got {len(x)} and {len(y)}"
    return x[:, :, None] + y[:, None, :]


def rule(info, in_dims, x, y):
    if in_dims != (0, 0):
        raise NotImplementedError("add_outer: expected a batch in dimension 0 of x and of y")
    return add_outer_of_many(x, y), 0


add_outer.register_vmap(rule)
