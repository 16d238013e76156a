"""Time of one call, and how fast it moves its bytes: python3 benchmark.py

On a CPU with one thread. On a GPU without the launch: a CUDA graph of calls whose tensors fill four L2 caches.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from squared_relu import squared_relu

SCALE = 0.5
SIZES = (2**10, 2**16, 2**20, 2**24)


def forward(x: Tensor) -> Tensor:
    return squared_relu(x, SCALE)


def forward_by_torch(x: Tensor) -> Tensor:
    return SCALE * torch.relu(x).square()


def backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.ops.squared_relu.squared_relu_backward(grad, x, SCALE)


def backward_by_torch(grad: Tensor, x: Tensor) -> Tensor:
    return grad * SCALE * (2 * torch.relu(x))


def median_us(call: Callable[..., Tensor], count: int, n: int) -> float:
    """Of a call with `count` tensors of n elements."""
    if not torch.cuda.is_available():
        names = {"call": call, "inputs": torch.randn(count, n).unbind()}
        return 1e6 * Timer("call(*inputs)", globals=names).blocked_autorange(min_run_time=0.2).median
    cache = torch.cuda.get_device_properties().L2_cache_size
    inputs = torch.randn(min(256, 4 * cache // (bytes_moved(count, n)) + 2), count, n, device="cuda")
    call(*inputs[0])  # compiles, loads
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call(*each) for each in inputs]  # kept, so that each call writes to memory of its own
    flush = torch.empty(4 * cache, dtype=torch.uint8, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(30):
        flush.zero_()  # small tensors do not fill the cache; this empties it, and takes longer than the next launches
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(results))
    return torch.tensor(times[5:]).median().item()


def bytes_moved(count: int, n: int) -> int:
    """float32: `count` tensors are read, one is written."""
    return 4 * (count + 1) * n


def share_of_peak(gb_per_s: float) -> str:
    if not torch.cuda.is_available():
        return "-"
    gpu = torch.cuda.get_device_properties()  # kHz, two transfers per clock; bits
    return f"{gb_per_s / (2 * gpu.memory_clock_rate * gpu.memory_bus_width / 8e6):.1%}"


def main() -> None:
    cases = {"forward": (1, forward_by_torch, forward), "backward": (2, backward_by_torch, backward)}
    for name, (count, by_torch, ours) in cases.items():
        print(f"{name + ', us':<14}{'torch':>10}{'compiled':>10}{'squared_relu':>14}{'GB/s':>8}{'of peak':>9}")
        for n in SIZES:
            compiled = torch.compile(by_torch, dynamic=False)
            times = [median_us(call, count, n) for call in (by_torch, compiled, ours)]
            speed = bytes_moved(count, n) / times[-1] / 1e3
            digits = f"{speed:.2g}" if speed < 10 else f"{speed:.0f}"
            print("{:>14}{:>10.2f}{:>10.2f}{:>14.2f}{:>8}{:>9}".format(n, *times, digits, share_of_peak(speed)))


main()
