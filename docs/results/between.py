"""add2's kernels against torch.add(out=) at sizes between powers of two: aligned and not, all dtypes.

    python3 docs/results/between.py add2.so h200-between.json     # a library with CUDA code; a minute on an H200

n = 2^8, 2^8.25, ... 2^30. Both calls are captured in CUDA graphs and replayed in turn, with a cold L2 cache.
"""

import ctypes
import json
import math
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lab.bench import clock  # noqa: E402
from lab.bench.calls import DTYPES  # noqa: E402

CUDA = torch.device("cuda")


def launcher(path: str):
    """The C function of a library that launches the kernel which fits, as a function of (c, a, b)."""
    launch = ctypes.CDLL(str(Path(path).resolve())).launch_add2_cuda
    launch.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    launch.restype = ctypes.c_char_p
    numbers = {dtype: number for number, dtype in enumerate(DTYPES.values())}

    def call(c, a, b):
        stream = torch.cuda.current_stream().cuda_stream
        error = launch(c.data_ptr(), a.data_ptr(), b.data_ptr(), c.numel(), numbers[c.dtype], stream)
        assert error is None, error

    return call


def measure(calls, memory, flush, n: int, dtype: torch.dtype, offset: int) -> list[float]:
    """The median time of each call in microseconds. offset: elements by which all three tensors are misaligned."""
    size, cache = 3 * n * dtype.itemsize, clock.cache_size(CUDA)
    step = math.ceil((n + offset) * dtype.itemsize / 256) * 256
    sets = max(1, min(192, math.ceil(4 * cache / size)))
    at = [slice(i * step, (i + 1) * step) for i in range(sets)]
    tensors = [[x[part].view(dtype)[offset : offset + n] for x in memory] for part in at]
    c, a, b = tensors[0]
    for call in calls[1:]:
        c.fill_(math.nan)
        call(c, a, b)
        assert torch.equal(c, a + b), (n, dtype, offset)
    is_cold = sets * size >= 4 * cache  # by itself
    repeats = max(sets, math.ceil(200 / (1.5 + size / 4e6)))  # a graph of at least 0.2 ms
    turns = [tensors[i % sets] for i in range(repeats)]
    graphs = [clock._capture([partial(call, *each) for each in turns]) for call in calls]
    replays, rounds = (6, 20) if size < 2**28 else (2, 10)
    found = [[] for _ in graphs]
    for turn in range(1 + rounds):
        for graph, samples in zip(graphs, found, strict=True):
            us = clock._between_events([graph.replay] * replays, None if is_cold else flush)
            if turn > 0:  # the first replay is left out: the host was still on its way to queue it
                samples += us[1:]
    return [statistics.median(samples) / repeats for samples in found]


def main(*paths: str) -> None:
    *libraries, target = paths
    calls = [lambda c, a, b: torch.add(a, b, out=c), *map(launcher, libraries)]
    memory = [torch.empty(2**33 + 2**20, dtype=torch.uint8, device=CUDA) for _ in range(3)]
    for x in memory:
        for part in x.view(torch.bfloat16).split(2**30):
            part.normal_()
    clock.gpu([partial(calls[0], *(x.view(torch.float32)[: 2**20] for x in memory))] * 100)  # warms the GPU up
    flush = clock.flush(CUDA)
    rows = []
    for offset in (0, 1):
        for name, dtype in DTYPES.items():
            for quarter in range(4 * 8, 4 * 30 + 1):
                n = round(2 ** (quarter / 4))
                torch_us, *us = measure(calls, memory, flush, n, dtype, offset)
                row = {"dtype": name, "n": n, "aligned": offset == 0, "torch_us": torch_us, "add2_us": us}
                rows.append(row | {"ratio": [round(each / torch_us, 4) for each in us]})
            part = [row["ratio"] for row in rows if row["dtype"] == name and row["aligned"] == (offset == 0)]
            for column in zip(*part, strict=True):
                mean = math.exp(sum(map(math.log, column)) / len(column))
                print(f"{name}, aligned {offset == 0}: mean {mean:.4f}, worst {max(column):.4f}", flush=True)
    environment = {"name": torch.cuda.get_device_name(), "torch": torch.__version__}
    environment |= {"date": time.strftime("%F"), "command": "python3 docs/results/between.py " + " ".join(paths)}
    lines = ",\n".join(json.dumps(row) for row in rows)
    Path(target).write_text(f'{{"environment": {json.dumps(environment)},\n"results": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
