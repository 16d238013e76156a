"""Host cost of a call: the time until it returns, without waiting for the GPU, which is still at work then.

It matters where tensors are small: a GPU that finishes its kernels faster than the host can queue them is idle.
"""

import statistics
import sys
import time
from collections.abc import Callable
from types import ModuleType

import torch

from . import clock

N = 1024


class _Bare(torch.autograd.Function):
    """The smallest possible autograd.Function: its cost beyond the operator that it calls is torch's own."""

    operator: Callable

    @staticmethod
    def forward(ctx, a, b):
        return _Bare.operator(a, b)

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


def calls(device: torch.device, module: ModuleType | None) -> dict[str, tuple[Callable, str]]:
    """Each call, and the call that it is compared with."""
    import add2

    a, b, c = torch.randn(3, N, device=device)
    with_grad = torch.randn(N, device=device, requires_grad=True)
    operator = torch.ops.add2.add2
    _Bare.operator = getattr(operator, "no_autograd", operator.default)
    found: dict[str, tuple[Callable, str]] = {
        "torch.add(out)": (lambda: torch.add(a, b, out=c), "torch.add(out)"),
        "torch_launch_add2": (lambda: add2.torch_launch_add2(c, a, b, N), "torch.add(out)"),
    }
    if module is not None:
        found["pybind11"] = (lambda: module.torch_launch_add2(c, a, b, N), "torch.add(out)")
    if device.type == "cuda" and (nvrtc := sys.modules.get("lab.build.nvrtc")):  # the build in use
        arguments = nvrtc.launch_arguments(c.get_device(), c, a, b, N)
        found["cuda.core.launch"] = (lambda: nvrtc.launch(*arguments), "torch.add(out)")
    return found | {
        "a + b": (lambda: a + b, "a + b"),
        "add2": (lambda: add2.add2(a, b), "a + b"),
        "torch.ops.add2.add2": (lambda: operator(a, b), "a + b"),
        "a + b, with grad": (lambda: with_grad + b, "a + b, with grad"),
        "add2, with grad": (lambda: add2.add2(with_grad, b), "autograd.Function, with grad"),
        "autograd.Function, with grad": (lambda: _Bare.apply(with_grad, b), "autograd.Function, with grad"),
        "torch.ops.add2.add2, with grad": (lambda: operator(with_grad, b), "autograd.Function, with grad"),
    }


def measure(device: torch.device, module: ModuleType | None, rounds: int = 100) -> list[dict]:
    """Median microseconds of a call, over rounds in which all calls take their turn, a hundred times each."""
    compared = calls(device, module)
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
        {"call": name, "median_us": medians[name], "against": against, "ratio": medians[name] / medians[against]}
        for name, (_, against) in compared.items()
    ]


def table(costs: list[dict]) -> str:
    width = max(len(row["call"]) for row in costs) + 2
    lines = [f"\nHost microseconds a call, asynchronous, n = {N}", f"{'call':<{width}}{'us':>8}{'ratio':>8}  to"]
    lines += [f"{row['call']:<{width}}{row['median_us']:>8.2f}{row['ratio']:>8.2f}  {row['against']}" for row in costs]
    return "\n".join(lines)
