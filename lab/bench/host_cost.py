"""Host cost of a call: the time until it returns, without waiting for the GPU. It matters where tensors are small: a
GPU that finishes its kernels faster than the host can queue them is idle."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from . import clock
from .calls import figure

N = 1024
BATCH = 100  # calls between two synchronizations; a GPU's queue holds a thousand, and a full one makes the host wait


def compared(calls: dict[str, Callable], device: torch.device) -> dict[str, Callable]:
    """The calls to compare, in three groups. The first of each is torch's own."""
    import add2

    a, b, c = torch.randn(3, N, device=device)
    grad = a.clone().requires_grad_()
    with torch.inference_mode():  # such tensors have no Autograd key: a call of an operator is its C++ function alone
        x, y = torch.randn(2, N, device=device)
    operator, launch = torch.ops.add2.add2, torch.ops.add2.torch_launch_add2

    class Bare(torch.autograd.Function):  # never run backward: its cost beyond the operator's is torch's own
        @staticmethod
        def forward(ctx, a, b):
            return operator.default(a, b)

    return {
        "torch.add(out)": partial(calls["torch.add(out)"], c, a, b, N),
        "C++ function that writes": lambda: launch.plain(c, a, b, N),
        "torch_launch_add2": partial(calls["torch_launch_add2"], c, a, b, N),
        "torch.ops.add2.torch_launch_add2": lambda: launch(c, a, b, N),
        "a + b": lambda: a + b,
        "C++ function": lambda: operator.default(x, y),
        "add2": lambda: add2.add2(a, b),
        "torch.ops.add2.add2": lambda: operator(a, b),
        "a + b, with grad": lambda: grad + b,
        "add2, with grad": lambda: add2.add2(grad, b),
        "autograd.Function, with grad": lambda: Bare.apply(grad, b),
        "torch.ops.add2.add2, with grad": lambda: operator(grad, b),
    }


def medians(calls: dict[str, Callable], device: torch.device) -> dict[str, float]:
    """Median microseconds of each call. All take their turn, a batch of calls each."""

    def batch(call: Callable) -> None:
        for _ in range(BATCH):
            call()

    def sample(call: Callable) -> list[float]:
        return [clock.span(partial(batch, call), device, after=False) / BATCH]

    timings = clock.repeat([partial(sample, call) for call in calls.values()], warm_up=3)
    return {name: timing.median_us for name, timing in zip(calls, timings, strict=True)}


def measure(calls: dict[str, Callable], device: torch.device) -> list[dict]:
    rows = []
    for name, us in medians(compared(calls, device), device).items():
        if name.startswith(("torch.add", "a + b")):  # torch's own, for those that follow
            torchs = us
        rows.append({"call": name, "median_us": us, "ratio_to_torch": us / torchs})
    return rows


def table(rows: Sequence[dict]) -> str:
    lines = [f"\nHost microseconds per call, asynchronous, n = {N}", f"{'call':<32}{'us':>8}{'ratio':>8}"]
    lines += [f"{row['call']:<32}{figure(row['median_us']):>8}{row['ratio_to_torch']:>8.3f}" for row in rows]
    return "\n".join(lines)
