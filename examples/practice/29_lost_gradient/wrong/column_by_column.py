# Right, but slow: several calls for each column.
# check says: calls of torch
import torch
from torch import Tensor


@torch.library.custom_op("practice::weigh_squares", mutates_args=())
def weigh_squares(x: Tensor, weight: Tensor) -> Tensor:
    """y[i, j] = weight[j] * x[i, j]^2"""
    return weight * x * x


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad):
    x, weight = ctx.saved_tensors
    columns = [(grad[:, j] * x[:, j] * x[:, j]).sum() for j in range(x.shape[1])]
    return 2 * grad * weight * x, torch.stack(columns) if columns else torch.zeros_like(weight)


weigh_squares.register_autograd(backward, setup_context=save)
