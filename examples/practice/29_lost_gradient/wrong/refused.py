# A cheat: refuses what it should compute.
# check says: but it fails:
import torch
from torch import Tensor


@torch.library.custom_op("practice::weigh_squares", mutates_args=())
def weigh_squares(x: Tensor, weight: Tensor) -> Tensor:
    """y[i, j] = weight[j] * x[i, j]^2"""
    return weight * x * x


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad):
    if ctx.needs_input_grad[1]:
        raise NotImplementedError("weight has no gradient")
    x, weight = ctx.saved_tensors
    return 2 * grad * weight * x, None


weigh_squares.register_autograd(backward, setup_context=save)
