"""Time add_rms_norm against torch, torch.compile, Liger and QuACK, forward and backward. Needs a GPU.

    python3 examples/add_rms_norm/bench.py
    python3 examples/add_rms_norm/bench.py --rows 2048 --widths 4096,65536 --json FILE

GPU time without launches, by CUDA graphs. The data of a call comes from memory, not from the L2 cache: calls rotate
among input sets of four times its size, and each keeps its outputs. In forward + backward, all forwards run first.
Liger (`python3 -m pip install liger-kernel`) and QuACK (`quack-kernels`) take part where they are installed.
"""

import argparse
import contextlib
import importlib
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from add_rms_norm import add_rms_norm, build, operators, reference
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import lesson  # of the workbench only what runs a lesson's programs,
from lab.bench import clock  # and a clock

# autograd's node for each input was made on another stream; its gradient is not accumulated here, so that is no matter.
warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")

Norm = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
DTYPE = torch.bfloat16
OURS = "add_rms_norm"
COLOURS = {"torch": "#777777", "torch.compile": "#d95f02", "liger": "#7570b3", "quack": "#e6ab02", OURS: "#1b9e77"}


def contestants() -> dict[str, Norm]:
    """The functions to compare; compiled anew for each shape, as its fastest code is that for one shape."""
    torch.compiler.reset()
    compiled = torch.compile(lambda a, b, w: reference(a, b, w), fullgraph=True, dynamic=False)
    found: dict[str, Norm] = {"torch": reference, "torch.compile": compiled, OURS: add_rms_norm}
    with contextlib.suppress(ImportError):
        quack = importlib.import_module("quack.rmsnorm").rmsnorm
        found["quack"] = lambda a, b, w: quack(a, w, residual=b, eps=1e-6, prenorm=True)[:2]
    with contextlib.suppress(ImportError):  # the last one: as it comes (in_place=True) it writes its gradient over dy
        liger = importlib.import_module("liger_kernel.transformers.functional").liger_fused_add_rms_norm
        found["liger"] = lambda a, b, w: liger(a, b, w, 1e-6)
    return found


class Inputs:
    """Sets of a, b, weight, dy, ds for a GPU's cold cache."""

    def __init__(self, rows: int, width: int, backward: bool) -> None:
        self.bytes = 4 * rows * width * DTYPE.itemsize  # read and written, forward; backward as many again
        self.backward = backward

        def draw(*shapes: tuple[int, ...], grad: bool = False) -> list[Tensor]:
            return [torch.randn(shape, device="cuda", dtype=DTYPE).requires_grad_(grad) for shape in shapes]

        shape = (rows, width)
        self.inputs = lesson.rotate_sets(partial(draw, shape, shape, (width,), grad=backward), self.bytes)
        self.grads = [draw(shape, shape) for _ in self.inputs * backward]
        is_cold = len(self.inputs) * self.bytes >= 4 * clock.cache_size(torch.device("cuda"))
        self.flush = None if is_cold else clock.flush(torch.device("cuda"))

    def time(self, norm: Norm) -> float:
        """Median microseconds of one forward, or of one forward and its backward."""
        kept: list = [None] * len(self.inputs)  # or the next call's outputs would go to the same memory

        def forward(i: int) -> None:
            kept[i] = norm(*self.inputs[i])

        def gradient(i: int) -> None:
            kept[i] = (kept[i], torch.autograd.grad(kept[i], self.inputs[i], self.grads[i]))

        passes = [forward, gradient] if self.backward else [forward]
        calls = [partial(each, i) for each in passes for i in range(len(kept))]
        first = [partial(each, 0) for each in passes]  # compiles, both ways
        return len(passes) * clock.gpu(calls, flush=self.flush, warm_up=first).median_us


def measure_shape(rows: int, width: int, backward: bool, peak: float) -> dict:
    """Microseconds of each contestant, the floor at the peak in GB/s, and our share of that peak."""
    inputs = Inputs(rows, width, backward)
    floor = inputs.bytes * (2 if backward else 1) / peak * 1e-3
    what = "forward + backward" if backward else "forward"
    timers = {name: partial(inputs.time, norm) for name, norm in contestants().items()}
    row = lesson.compare({"pass": what, "width": width, "rows": rows, "floor_us": floor}, timers, OURS)
    return row | {"of_peak": floor / row[OURS]}


def measure(args: argparse.Namespace, where: dict) -> Iterator[dict]:
    memory = torch.cuda.get_device_properties(0).total_memory
    for backward, width, rows in itertools.product((False, True), args.widths, args.rows):
        if 12 * rows * width * DTYPE.itemsize > memory / 2:
            continue  # two sets of inputs, outputs and gradients, and what torch needs in between
        yield measure_shape(rows, width, backward, where["peak_gb_per_s"])


def plot(figure, content: dict) -> None:
    """Share of the memory's peak over the width, a panel for each number of rows and pass."""
    results, where = content["results"], content["environment"]
    passes = list(dict.fromkeys(row["pass"] for row in results))
    counts = sorted({row["rows"] for row in results})
    figure.set_size_inches(5.6, 1.7 * len(counts) + 1.5)
    panels = figure.subplots(len(counts), len(passes), squeeze=False, sharex=True, sharey="row")
    for panel, (count, what) in zip(panels.flat, itertools.product(counts, passes), strict=True):
        for name, colour in COLOURS.items():
            shown = [row for row in results if (row["pass"], row["rows"]) == (what, count) and name in row]
            share = [100 * row["floor_us"] / row[name] for row in shown]
            panel.plot([row["width"] for row in shown], share, marker=".", color=colour, label=name)
    for panel, what in zip(panels[0], passes, strict=True):
        panel.set_title(what)
        panel.set_xscale("log", base=2)
    for panel, count in zip(panels[:, 0], counts, strict=True):
        panel.set_ylabel("1 row" if count == 1 else f"{count} rows")
        panel.set_ylim(bottom=0)
    for panel in panels[-1]:
        panel.set_xlabel("width")
    figure.suptitle(f"% of the memory's peak, {where['dtype']}, {where['name']}")
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3)


if __name__ == "__main__":
    parser = lesson.options(__doc__)
    for name, default in (("--rows", "1,64,2048,16384"), ("--widths", "256,1024,4096,8192,16384,32768,65536,131072")):
        parser.add_argument(name, default=default, metavar="N,N", type=lambda text: [int(n) for n in text.split(",")])
    args = parser.parse_args()
    lesson.report(args, partial(operators.is_ready, build), partial(measure, args))
