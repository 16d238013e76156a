"""What a call costs the host: the time until it returns, with nothing waited for. The GPU is still at work then.

It matters where tensors are small: a GPU that gets through its kernels faster than the host can queue them is idle.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch

from . import clock


@dataclass
class HostCost:
    """One line of the table. `ratio` is to the call named by `against`, in the same run."""

    call: str
    median_us: float
    against: str
    ratio: float


class _Bare(torch.autograd.Function):
    """The least that an autograd.Function can be: what it costs beyond the operator that it calls."""

    @staticmethod
    def forward(ctx, a, b):
        return torch.ops.add2.add2(a, b)

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


def calls(device: torch.device, module: ModuleType | None, n: int) -> dict[str, tuple[Callable, str]]:
    """Each call, and the call of torch's (or the other way to do the same) that it is compared with."""
    import add2

    a, b, c = torch.randn(3, n, device=device)
    with_grad = torch.randn(n, device=device, requires_grad=True)
    found: dict[str, tuple[Callable, str]] = {
        "torch.add(out)": (lambda: torch.add(a, b, out=c), "torch.add(out)"),
        "torch_launch_add2": (lambda: add2.torch_launch_add2(c, a, b, n), "torch.add(out)"),
    }
    if module is not None:
        found["pybind11"] = (lambda: module.torch_launch_add2(c, a, b, n), "torch.add(out)")
    return found | {
        "a + b": (lambda: a + b, "a + b"),
        "add2": (lambda: add2.add2(a, b), "a + b"),
        "torch.ops.add2.add2": (lambda: torch.ops.add2.add2(a, b), "a + b"),
        "a + b, with grad": (lambda: with_grad + b, "a + b, with grad"),
        "add2, with grad": (lambda: add2.add2(with_grad, b), "autograd.Function, with grad"),
        "autograd.Function, with grad": (lambda: _Bare.apply(with_grad, b), "autograd.Function, with grad"),
        "torch.ops.add2.add2, with grad": (
            lambda: torch.ops.add2.add2(with_grad, b),
            "autograd.Function, with grad",
        ),
    }


def measure(device: torch.device, module: ModuleType | None, n: int = 1024, rounds: int = 100) -> list[HostCost]:
    """Median microseconds of a call, over rounds in which all calls take their turn, a hundred times each."""
    compared = calls(device, module, n)
    samples: dict[str, list[float]] = {name: [] for name in compared}
    batch = 100  # short of the thousand launches that a GPU's queue holds: a full queue makes the host wait
    for turn in range(rounds + 3):
        for name, (call, _) in compared.items():
            clock.synchronize(device)
            start = time.perf_counter()
            for _ in range(batch):
                call()
            taken = time.perf_counter() - start
            if turn >= 3:  # the first rounds are warm-up
                samples[name].append(taken / batch * 1e6)
    medians = {name: statistics.median(times) for name, times in samples.items()}
    return [
        HostCost(name, medians[name], against, medians[name] / medians[against])
        for name, (_, against) in compared.items()
    ]


def table(costs: list[HostCost], n: int = 1024) -> str:
    width = max(len(cost.call) for cost in costs) + 2
    lines = [f"\nHost microseconds a call, asynchronous, n = {n}", f"{'call':<{width}}{'us':>8}{'ratio':>8}  to"]
    lines += [f"{cost.call:<{width}}{cost.median_us:>8.2f}{cost.ratio:>8.2f}  {cost.against}" for cost in costs]
    return "\n".join(lines)
