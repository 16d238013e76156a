"""Time of one call, and how fast it moves its bytes: python3 benchmark.py [--json FILE]

On a CPU with one thread. On a GPU without the launch: a CUDA graph of calls whose tensors fill four L2 caches.
"""

import argparse
import datetime
import json
import platform
from collections.abc import Callable
from pathlib import Path

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


def peak_gb_per_s() -> float | None:
    if not torch.cuda.is_available():
        return None
    gpu = torch.cuda.get_device_properties()
    return 2 * gpu.memory_clock_rate * gpu.memory_bus_width / 8e6  # kHz, two transfers per clock; bits


def measure() -> list[dict]:
    """Times in microseconds, a row for each pass and size. Prints them."""
    cases = {"forward": (1, forward_by_torch, forward), "backward": (2, backward_by_torch, backward)}
    rows, peak = [], peak_gb_per_s()
    for name, (count, by_torch, ours) in cases.items():
        print(f"{name + ', us':<14}{'torch':>10}{'compiled':>10}{'squared_relu':>14}{'GB/s':>8}{'of peak':>9}")
        for n in SIZES:
            calls = {"torch": by_torch, "compiled": torch.compile(by_torch, dynamic=False), "ours": ours}
            times = {who: median_us(call, count, n) for who, call in calls.items()}
            speed = bytes_moved(count, n) / times["ours"] / 1e3
            share = speed / peak if peak else None
            rows.append({"pass": name, "n": n, **times, "gb_per_s": speed, "of_peak": share})
            shown = f"{speed:.2g}" if speed < 10 else f"{speed:.0f}"
            of_peak = f"{share:.1%}" if peak else "-"
            print("{:>14}{:>10.2f}{:>10.2f}{:>14.2f}{:>8}{:>9}".format(n, *times.values(), shown, of_peak))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows and the environment there, too")
    file = parser.parse_args().json
    rows = measure()
    if file:
        environment = {
            "name": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "date": f"{datetime.date.today()}",
            "command": "python3 benchmark.py --json FILE (in a copy of examples/starter)",
        }
        file.write_text(json.dumps({"environment": environment, "results": rows}, indent=1))


main()
