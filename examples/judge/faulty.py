"""An operator with four faults, and its description for the referee. Page "Judge an operator" reads the report."""

import torch
from torch import Tensor

from lab.referee import Operator


@torch.library.custom_op("page::weigh", mutates_args=())
def weigh(x: Tensor, weight: Tensor) -> Tensor:
    """y[i, j] = weight[j] * x[i, j]"""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return torch.mul(x, weight, out=y)


@weigh.register_fake
def weigh_fake(x, weight):
    return torch.empty_like(x)


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad):
    x, weight = ctx.saved_tensors
    return grad * weight, (grad.detach() * x).sum(0)


weigh.register_autograd(backward, setup_context=save)

spec = Operator(
    "page::weigh",
    inputs=lambda device: (torch.randn(3, 6, device=device), torch.randn(6, device=device)),
    reference=lambda x, weight: x * weight,
    gradients=(0, 1),
)
