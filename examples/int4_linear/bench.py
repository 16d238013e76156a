"""Time int4_linear against bf16 F.linear, torch.compile, torch's own 4-bit kernel and bitsandbytes. Needs a GPU.

    python3 examples/int4_linear/bench.py --json FILE --plot FILE.svg

GPU time without launches, by CUDA graphs. Calls rotate among weights of four times the L2 cache, like a model's layers.
torch.compile is timed at the batches 1 and 16 only: it compiles for seconds.
"""

import contextlib
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from int4_linear import GROUP, build, has_toolkit, int4_linear, quantize
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import lesson  # of the workbench, only options, files,
from lab.bench import clock  # and a clock

SHAPES = [(4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192)]
BATCHES = (1, 2, 4, 8, 16, 32, 64, 256)
OURS = "int4_linear"
COLOURS = {"F.linear": "#777777", "torch.compile": "#d95f02", "tinygemm": "#7570b3", "bitsandbytes": "#e6ab02"}
COLOURS |= {OURS: "#1b9e77"}
Call = Callable[[Tensor], Tensor]


@torch.compile(fullgraph=True, dynamic=False)
def unpack_and_multiply(x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    both = torch.stack((codes & 15, codes >> 4), -1).view(len(codes), -1, GROUP)
    return F.linear(x, ((both.to(x.dtype) - zero) * scale).view(len(codes), -1))


def contestants(n: int, k: int) -> dict[str, Call]:
    """A layer of each kind, with random weights."""
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    packed, scale, zero = quantize(weight)
    codes = packed.view(torch.uint8).view(n, k // 2)  # a row has codes of others, too: it takes as long
    affine = torch.stack((scale, scale), -1)
    tiny = torch._convert_weight_to_int4pack(codes, 8)
    found = {
        "F.linear": lambda x: F.linear(x, weight),
        "torch.compile": lambda x: unpack_and_multiply(x, codes, scale.t()[..., None], zero.view(n, -1, 1)),
        "tinygemm": lambda x: torch._weight_int4pack_mm(x, tiny, GROUP, affine),
        OURS: lambda x: int4_linear(x, packed, scale, zero),
    }
    with contextlib.suppress(ImportError):
        import bitsandbytes as bnb

        nf4, state = bnb.functional.quantize_4bit(weight, blocksize=GROUP, quant_type="nf4")
        found["bitsandbytes"] = lambda x: bnb.matmul_4bit(x, nf4.t(), state)
    return found


def inputs(n: int, k: int, batch: int) -> list[Tensor]:
    """x for each of the weights that a rotation needs."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(2, math.ceil(4 * cache / (n * k / 2)))
    return [torch.randn(batch, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]


@torch.no_grad()
def time_calls(layers: list[Call], xs: list[Tensor]) -> float:
    """Microseconds of a call. Each has its own output; a replay of the graph has enough calls to hide its start."""
    kept: list = [None] * len(xs)

    def call(i: int) -> None:
        kept[i] = layers[i](xs[i])

    calls = [partial(call, i) for i in range(len(xs))]
    return clock.gpu(calls * math.ceil(16 / len(calls))).median_us


def floor_us(n: int, k: int, batch: int, peak: float) -> float:
    """The time to read codes, scales, zeros and x, and to write y, at the memory's peak in GB/s."""
    return (n * k / 2 + 3 * n * k / GROUP + 2 * batch * (n + k)) / peak * 1e-3


def measure(n: int, k: int, peak: float) -> list[dict]:
    """A row for each batch: the time of each contestant in microseconds, and the floor that memory sets."""
    rows = [{"n": n, "k": k, "batch": batch, "floor_us": floor_us(n, k, batch, peak)} for batch in BATCHES]
    torch.compiler.reset()  # it compiles anew for each shape, and only so often
    layers = [contestants(n, k) for _ in inputs(n, k, 1)]
    for name in layers[0]:
        for row in rows:
            if name != "torch.compile" or row["batch"] in (1, 16):
                row[name] = time_calls([each[name] for each in layers], inputs(n, k, row["batch"]))
    for row in rows:
        row["of_best"] = row[OURS] / min(row[name] for name in COLOURS if name in row and name != OURS)
        print("  ".join(f"{name} {value:.5g}" for name, value in row.items()), flush=True)
    return rows


def plot(figure, content: dict) -> None:
    """Time over the batch, a panel for each shape."""
    figure.set_size_inches(13.4, 3.2)
    results = content["results"]
    for panel, shape in zip(figure.subplots(1, len(SHAPES)), SHAPES, strict=True):
        rows = [row for row in results if (row["n"], row["k"]) == shape]
        for name, colour in COLOURS.items():
            timed = [row for row in rows if name in row]
            panel.plot([row["batch"] for row in timed], [row[name] for row in timed], ".-", color=colour, label=name)
        panel.plot([row["batch"] for row in rows], [row["floor_us"] for row in rows], "k--", label="memory's floor")
        panel.set_xscale("log", base=2)
        panel.set(yscale="log", title="{} x {}".format(*shape), xlabel="rows of x", ylabel="microseconds")
        panel.grid(alpha=0.3)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=6)


def measure_all(where: dict) -> list[dict]:
    return [row for shape in SHAPES for row in measure(*shape, where["peak_gb_per_s"])]


def is_ready() -> bool:
    return has_toolkit() and bool(build())


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__, has_plot=True).parse_args(), is_ready, measure_all, plot)
