"""torchlpc 0.7.2: pip install --no-build-isolation torchlpc."""

import torch
import torchlpc

from lab.referee import Operator


def filtered_by_torch(x, a, before):
    """y[t] = x[t] - a[t, 0] y[t - 1] - a[t, 1] y[t - 2]. before: y[-1] and y[-2]."""
    y = [*before.flip(1).unbind(1)]
    for t in range(x.shape[1]):
        y.append(x[:, t] - sum(a[:, t, i] * y[-1 - i] for i in range(a.shape[2])))
    return torch.stack(y[a.shape[2] :], 1)


lpc = Operator(
    "torchlpc::lpc",
    call=torchlpc.sample_wise_lpc,
    reference=filtered_by_torch,
    inputs=lambda device: [0.3 * torch.randn(shape, device=device) for shape in ((2, 7), (2, 7, 2), (2, 2))],
    gradients=(0, 1, 2),
    sizes={"time": [(0, 1), (1, 1)], "batch": [(0, 0), (1, 0), (2, 0)]},
)
