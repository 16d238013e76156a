# Fast, but wrong: a difference quotient, whose step is lost in float32.
# check says: gradients:
import torch
from torch import Tensor


@torch.library.custom_op("practice::standardize", mutates_args=())
def standardize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y[i, j] = (x[i, j] - mean of x[i]) / deviation of x[i]; also the means and the deviations."""
    mean = x.mean(1, keepdim=True)
    deviation = (x - mean).square().mean(1, keepdim=True).sqrt()
    return (x - mean) / deviation, mean, deviation


def save(ctx, inputs, output):
    (x,) = inputs
    _, mean, deviation = output
    ctx.save_for_backward(x, mean, deviation)
    ctx.mark_non_differentiable(mean, deviation)


def backward(ctx, grad, *_):
    x, _, _ = ctx.saved_tensors
    step = 1e-6
    columns = []
    for j in range(x.shape[1]):
        above, below = x.clone(), x.clone()
        above[:, j] += step
        below[:, j] -= step
        columns.append(((standardize(above)[0] - standardize(below)[0]) / (2 * step) * grad).sum(1))
    return torch.stack(columns, 1)


standardize.register_autograd(backward, setup_context=save)
