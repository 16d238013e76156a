"""Time int4_linear against bf16 F.linear, torch's own 4-bit kernel, Humming and bitsandbytes. Needs a GPU.

    python3 examples/int4_linear/bench.py --json FILE

Humming (`python3 -m pip install tokenspeed-humming`) and bitsandbytes (`bitsandbytes`) take part where installed.
GPU time without launches, by CUDA graphs. Calls rotate among weights of four times the L2 cache, like a model's layers.
Each contestant runs for a while before it is timed: from some 128 rows on the GPU's clock falls under load, and a call
after a rest would run at a faster clock.
"""

import contextlib
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from int4_linear import GROUP, build, int4_linear, operators, quantize
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import lesson  # of the workbench only what runs a lesson's programs,
from lab.bench import clock  # and a clock

# The constants in plan.h come from other sizes, except for the first four.
SHAPES = [(8192, 8192), (14336, 4096), (4096, 14336), (6144, 4096), (18944, 3584), (2560, 9728), (1536, 8960)]
BATCHES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
OURS = "int4_linear"
WARM_S = 0.06
PEAK_TFLOPS = 989  # of an H100 and an H200 in 16 bits, by their data sheets
FOR_FEW_ROWS = ("tinygemm", "bitsandbytes")  # with more than 64 they take 2 to 9 times F.linear's time
COLOURS = {"F.linear": "#777777", "tinygemm": "#7570b3", "bitsandbytes": "#e6ab02", "Humming": "#d95f02"}
COLOURS |= {"Marlin": "#e7298a", OURS: "#1b9e77"}
Call = Callable[[Tensor], Tensor]


def contestants(n: int, k: int) -> dict[str, Call]:
    """A layer of each kind, with random weights."""
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    packed, scale, zero = quantize(weight)
    tiny = torch._convert_weight_to_int4pack(packed.view(torch.uint8).view(n, k // 2), 8)  # other codes: as fast
    affine = torch.stack((scale, scale), -1)
    found = {
        "F.linear": lambda x: F.linear(x, weight),
        "tinygemm": lambda x: torch._weight_int4pack_mm(x, tiny, GROUP, affine),
        OURS: lambda x: int4_linear(x, packed, scale, zero),
    }
    with contextlib.suppress(ImportError):
        import bitsandbytes as bnb

        nf4, state = bnb.functional.quantize_4bit(weight, blocksize=GROUP, quant_type="nf4")
        found["bitsandbytes"] = lambda x: bnb.matmul_4bit(x, nf4.t(), state)
    with contextlib.suppress(ImportError):
        humming, tune = map(importlib.import_module, ("humming.layer", "humming.tune"))
        # Codes without zeros, which is less work than ours.
        layer = humming.HummingLayer(n, k, {"dtype": "uint4", "group_size": GROUP}, torch_dtype=torch.bfloat16).cuda()
        layer.load_from_unquantized(weight)
        layer.transform()
        # Its own choice for this number of rows: without tuning_config it compiles a kernel for each number first.
        choice = partial(tune.get_heuristics_config, layer.humming_config)
        found["Humming"] = lambda x: layer(x, tuning_config=choice(len(x)))
    return found


def inputs(n: int, k: int, batch: int) -> list[Tensor]:
    """x for each of the weights that a rotation needs."""
    return lesson.rotate_sets(partial(torch.randn, batch, k, device="cuda", dtype=torch.bfloat16), n * k / 2)


@torch.no_grad()
def time_calls(layers: list[Call], xs: list[Tensor]) -> float:
    """Microseconds of a call, once the GPU's clock has settled. Each has its own output."""
    kept: list = [None] * len(xs)

    def call(i: int) -> None:
        kept[i] = layers[i](xs[i])

    calls = [partial(call, i) for i in range(len(xs))] * math.ceil(64 / len(xs))  # a replay starts once
    [samples] = clock.steady({"": calls}, rounds=1, warm_s=WARM_S).values()
    return samples[0]


def floor_us(n: int, k: int, batch: int, peak: float) -> float:
    """The time to move codes, scales, zeros, x and y at the memory's peak in GB/s, or to multiply at PEAK_TFLOPS."""
    moved = n * k / 2 + 3 * n * math.ceil(k / GROUP) + 2 * batch * (n + k)
    return max(moved / peak * 1e-3, 2 * batch * n * k / PEAK_TFLOPS * 1e-6)


def measure(where: dict) -> Iterator[dict]:
    """A row for each size and batch: the time of each contestant in microseconds, and the floor of the hardware."""
    for n, k in SHAPES:
        layers = [contestants(n, k) for _ in inputs(n, k, 1)]
        for batch in BATCHES:
            point = {"n": n, "k": k, "batch": batch, "floor_us": floor_us(n, k, batch, where["peak_gb_per_s"])}
            xs = inputs(n, k, batch)
            names = [name for name in layers[0] if batch <= 64 or name not in FOR_FEW_ROWS]
            timers = {name: partial(time_calls, [each[name] for each in layers], xs) for name in names}
            yield lesson.compare(point, timers, OURS)


def plot(figure, content: dict) -> None:
    """Time over the batch, for the first shape."""
    figure.set_size_inches(5.6, 4.6)
    panel = figure.subplots()
    title = "{} x {}, {}".format(*SHAPES[0], content["environment"]["name"])
    rows = [row for row in content["results"] if (row["n"], row["k"]) == SHAPES[0]]
    for name, colour in COLOURS.items():
        if timed := [row for row in rows if name in row]:
            panel.plot([row["batch"] for row in timed], [row[name] for row in timed], ".-", color=colour, label=name)
    panel.plot([row["batch"] for row in rows], [row["floor_us"] for row in rows], "k--", label="the hardware's floor")
    panel.set_xscale("log", base=2)
    panel.set(yscale="log", title=title, xlabel="rows of x", ylabel="microseconds")
    panel.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)


def is_ready() -> bool:
    return operators.is_ready(build)


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), is_ready, measure)
