"""Host cost of a call: the time until it returns, without waiting for the GPU, which is still at work then.

It matters where tensors are small: a GPU that finishes its kernels faster than the host can queue them is idle.
"""

import statistics
import sys
import time
from collections.abc import Callable
from types import ModuleType

import torch

from . import clock, tables

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


def groups(device: torch.device, module: ModuleType | None) -> list[dict[str, Callable]]:
    """The calls that are compared with each other. The first of each group is torch's own."""
    import add2

    a, b, c = torch.randn(3, N, device=device)
    grad = torch.randn(N, device=device, requires_grad=True)
    operator = torch.ops.add2.add2
    _Bare.operator = getattr(operator, "no_autograd", operator.default)
    writing: dict[str, Callable] = {
        "torch.add(out)": lambda: torch.add(a, b, out=c),
        "torch_launch_add2": lambda: add2.torch_launch_add2(c, a, b, N),
    }
    if module is not None:
        writing["pybind11"] = lambda: module.torch_launch_add2(c, a, b, N)
    if device.type == "cuda" and (nvrtc := sys.modules.get("kernel.add2_nvrtc")):  # the build in use
        arguments = nvrtc.launch_arguments(c.get_device(), c, a, b, N)
        writing["cuda.core.launch"] = lambda: nvrtc.launch(*arguments)
    plain = {"a + b": lambda: a + b, "add2": lambda: add2.add2(a, b), "torch.ops.add2.add2": lambda: operator(a, b)}
    differentiated = {
        "a + b, with grad": lambda: grad + b,
        "add2, with grad": lambda: add2.add2(grad, b),
        "autograd.Function, with grad": lambda: _Bare.apply(grad, b),
        "torch.ops.add2.add2, with grad": lambda: operator(grad, b),
    }
    return [writing, plain, differentiated]


def medians(calls: dict[str, Callable], device: torch.device) -> dict[str, float]:
    """Median microseconds of each call, over 100 rounds in which all take their turn, a hundred times each."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    batch = 100  # short of the thousand launches that a GPU's queue holds: a full queue makes the host wait
    for turn in range(103):
        for name, call in calls.items():
            clock.synchronize(device)
            start = time.perf_counter()
            for _ in range(batch):
                call()
            taken = time.perf_counter() - start
            if turn >= 3:  # the first rounds are warm-up
                samples[name].append(taken / batch * 1e6)
    return {name: statistics.median(times) for name, times in samples.items()}


def measure(device: torch.device, module: ModuleType | None) -> list[dict]:
    """Print a table, and return its rows."""
    compared = groups(device, module)
    found = medians({name: call for group in compared for name, call in group.items()}, device)
    rows = []
    print(f"\nHost microseconds a call, asynchronous, n = {N}\n{'call':<32}{'us':>8}{'ratio':>8}")
    for group in compared:
        torchs = found[next(iter(group))]
        for name in group:
            rows.append({"call": name, "median_us": found[name], "ratio_to_torch": found[name] / torchs})
            print(f"{name:<32}{tables.figure(found[name]):>8}{found[name] / torchs:>8.3f}")
    return rows
