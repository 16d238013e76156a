"""pytorch/extension-cpp, commit 0ec4969: pip install --no-build-isolation ."""

import extension_cpp  # noqa: F401 (registers the operators)
import torch

from lab.referee import Operator

mymuladd = Operator(
    "extension_cpp::mymuladd",
    reference=lambda a, b, c: a * b + c,
    inputs=lambda device: (torch.randn(3, 5, device=device), torch.randn(3, 5, device=device), 2.0),
    gradients=(0, 1),
)

myadd_out = Operator(
    "extension_cpp::myadd_out",
    reference=lambda a, b, out: out.copy_(a + b),
    inputs=lambda device: [torch.randn(3, 5, device=device) for _ in range(3)],
)
