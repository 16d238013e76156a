"""The operator of the starter's gradient (tests/spec.py there has squared_relu). PYTHONPATH: src/ of a built copy."""

import squared_relu  # noqa: F401  (registers it)
import torch

from lab.referee import Operator


def backward_by_torch(grad, x, scale):
    def forward(x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (scale * torch.relu(wide).square()).to(x.dtype)

    return torch.func.vjp(forward, x)[1](grad)[0]


backward = Operator(
    "squared_relu::squared_relu_backward",
    inputs=lambda device: (torch.randn(4, 3, device=device), torch.randn(4, 3, device=device), 0.5),
    reference=backward_by_torch,
    gradients=(0, 1),
    wrong={
        "grad is Double": {0: lambda grad: grad.double()},
        r"grad has shape \[4, 3\], expected \[3, 3\]": {1: lambda x: x[1:]},
    },
)
