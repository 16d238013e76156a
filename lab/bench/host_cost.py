"""Host cost of a call: the time until it returns, without waiting for the GPU, which is still at work then. It matters
where tensors are small: a GPU that finishes its kernels faster than the host can queue them is idle."""

import sys
from collections.abc import Callable
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
    grad = torch.randn(N, device=device, requires_grad=True)
    operator = torch.ops.add2.add2

    class Bare(torch.autograd.Function):
        """The smallest possible one, never run backward: its cost beyond the operator's is torch's own."""

        @staticmethod
        def forward(ctx, a, b):
            return operator.default(a, b)

    writing = ("torch.add(out)", "torch_launch_add2", "pybind11")
    found = {name: partial(calls[name], c, a, b, N) for name in writing if name in calls}
    if device.type == "cuda" and (nvrtc := sys.modules.get("add2.nvrtc")) and nvrtc.is_registered():  # the build in use
        arguments = nvrtc.launch_arguments(c.get_device(), c, a, b, N)
        found["cuda.core.launch"] = lambda: nvrtc.launch(*arguments)
    return found | {
        "a + b": lambda: a + b,
        "add2": lambda: add2.add2(a, b),
        "torch.ops.add2.add2": lambda: operator(a, b),
        "a + b, with grad": lambda: grad + b,
        "add2, with grad": lambda: add2.add2(grad, b),
        "autograd.Function, with grad": lambda: Bare.apply(grad, b),
        "torch.ops.add2.add2, with grad": lambda: operator(grad, b),
    }


def medians(calls: dict[str, Callable], device: torch.device) -> dict[str, float]:
    """Median microseconds of each call. All take their turn, a batch of calls each."""

    def sample(call: Callable) -> list[float]:
        def batch() -> None:
            for _ in range(BATCH):
                call()

        return [clock.span(batch, device, after=False) / BATCH]

    timings = clock.repeat("host cost", [partial(sample, call) for call in calls.values()], warm_up=3)
    return {name: timing.median_us for name, timing in zip(calls, timings, strict=True)}


def measure(calls: dict[str, Callable], device: torch.device) -> list[dict]:
    """Print a table, and return its rows. calls: of calls.calls()."""
    print(f"\nHost microseconds a call, asynchronous, n = {N}\n{'call':<32}{'us':>8}{'ratio':>8}")
    rows, torchs = [], 0.0
    for name, us in medians(compared(calls, device), device).items():
        if name.startswith(("torch.add", "a + b")):  # torch's own, for those that follow
            torchs = us
        rows.append({"call": name, "median_us": us, "ratio_to_torch": us / torchs})
        print(f"{name:<32}{figure(us):>8}{us / torchs:>8.3f}")
    return rows
