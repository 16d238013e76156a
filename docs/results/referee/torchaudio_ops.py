"""torchaudio 2.11.0: pip install torchaudio."""

import torch
import torchaudio

from lab.referee import Operator


def filtered_by_torch(x, a, b):
    """y[t] = (b[0] x[t] + b[1] x[t - 1] + b[2] x[t - 2] - a[1] y[t - 1] - a[2] y[t - 2]) / a[0]"""
    y = []
    for t in range(x.shape[-1]):
        total = sum(b[i] * x[..., t - i] for i in range(3) if i <= t)
        y.append((total - sum(a[i] * y[t - i] for i in (1, 2) if i <= t)) / a[0])
    return torch.stack(y, -1)


lfilter = Operator(
    "torchaudio::_lfilter_core_loop",
    call=lambda x, a, b: torchaudio.functional.lfilter(x, a, b, clamp=False),
    reference=filtered_by_torch,
    inputs=lambda device: (
        torch.randn(2, 9, device=device),
        torch.tensor([1.0, 0.3, -0.2], device=device),
        torch.tensor([0.5, 0.2, 0.1], device=device),
    ),
    gradients=(0, 1, 2),
    sizes={"time": [(0, 1)]},
)


def loss_by_torch(logits, targets, times, lengths):
    """Minus the logarithm of the sum over all paths through times x targets. Number 0 is the blank."""
    logs, losses = logits.log_softmax(-1), []
    for b in range(len(logits)):
        last = int(lengths[b])
        sums = {(-1, 0): logs.new_zeros(())}
        for t in range(int(times[b])):
            for u in range(last + 1):
                ways = []
                if (t - 1, u) in sums:
                    ways.append(sums[t - 1, u] + (logs[b, t - 1, u, 0] if t else 0))
                if u:
                    ways.append(sums[t, u - 1] + logs[b, t, u - 1, targets[b, u - 1]])
                sums[t, u] = torch.logsumexp(torch.stack(ways), 0)
        losses.append(-sums[t, last] - logs[b, t, last, 0])
    return torch.stack(losses)


def loss_inputs(device):
    numbers = [[[1, 2], [2, 1]], [3, 3], [2, 2]]
    return torch.randn(2, 3, 3, 4, device=device), *(torch.tensor(n, dtype=torch.int32, device=device) for n in numbers)


rnnt_loss = Operator(
    "torchaudio::rnnt_loss_forward",
    call=lambda *tensors: torchaudio.functional.rnnt_loss(*tensors, blank=0, reduction="none"),
    reference=loss_by_torch,
    inputs=loss_inputs,
    gradients=(0,),
    sizes={},
)
