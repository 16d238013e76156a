"""Time of one call, and how fast it moves its bytes: python3 benchmark.py
On a CPU with one thread. On a GPU without the launch: a CUDA graph of calls whose tensors fill four L2 caches."""

import torch
from scaled_relu import scaled_relu
from torch.utils.benchmark import Timer

BYTES = 3 * 4  # per element: two float32 read, one written


def by_torch(a, b, scale):
    return torch.relu(scale * (a + b))


def median_us(call, n: int) -> float:
    if not torch.cuda.is_available():
        names = {"call": call, "inputs": torch.randn(2, n).unbind()}
        return 1e6 * Timer("call(*inputs, 0.5)", globals=names).blocked_autorange(min_run_time=0.2).median
    cache = torch.cuda.get_device_properties().L2_cache_size
    inputs = torch.randn(min(256, 4 * cache // (BYTES * n) + 2), 2, n, device="cuda")
    call(*inputs[0], 0.5)  # compiles, loads
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call(a, b, 0.5) for a, b in inputs]  # kept, so that each call writes to memory of its own
    flush, times = torch.empty(4 * cache, dtype=torch.uint8, device="cuda"), []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(30):
        flush.zero_()  # small tensors do not fill the cache; this empties it, and takes longer than the next launches
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(results))
    return torch.tensor(times[5:]).median().item()


print(f"float32, us{'':>8}torch  compiled{'scaled_relu':>13}    GB/s  of peak")
for n in (2**10, 2**16, 2**20, 2**24):
    times = [median_us(call, n) for call in (by_torch, torch.compile(by_torch, dynamic=False), scaled_relu)]
    speed, share = BYTES * n / times[-1] / 1e3, "-"
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties()  # kHz, two transfers per clock; bits
        share = f"{speed / (2 * gpu.memory_clock_rate * gpu.memory_bus_width / 8e6):.0%}"
    print("{:>14}{:>10.2f}{:>10.2f}{:>13.2f}{:>8.0f}{:>9}".format(n, *times, speed, share))
