# Fast, but wrong: the rule does not say which dimension of the result counts the batch.
# check says: A rule returns two things
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
    x_dim, y_dim = in_dims
    x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
    y = y.expand(info.batch_size, *y.shape) if y_dim is None else y.movedim(y_dim, 0)
    return add_outer_of_many(x, y)


add_outer.register_vmap(rule)
