"""The operator of faulty.py without its faults: the referee has no finding."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lab.referee import Operator


@torch.library.custom_op("page::weigh", mutates_args=())
def kernel(x: Tensor, weight: Tensor) -> Tensor:
    """y[i, j] = weight[j] * x[i, j]"""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return torch.mul(x, weight, out=y)


@kernel.register_fake
def fake(x, weight):
    torch._check(x.device == weight.device, lambda: f"weight is on {weight.device}, expected {x.device}")
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad):
    x, weight = ctx.saved_tensors
    return grad * weight, (grad * x).sum(0)


kernel.register_autograd(backward, setup_context=save)


def weigh(x: Tensor, weight: Tensor) -> Tensor:
    """y[i, j] = weight[j] * x[i, j]. There is no forward derivative."""
    for each in (x, weight):
        if forward_ad.unpack_dual(each).tangent is not None:
            raise NotImplementedError("weigh has no forward derivative: use torch.autograd.grad")
    return kernel(x, weight)


spec = Operator(
    "page::weigh",
    call=weigh,
    inputs=lambda device: (torch.randn(3, 6, device=device), torch.randn(6, device=device)),
    reference=lambda x, weight: x * weight,
    gradients=(0, 1),
)
