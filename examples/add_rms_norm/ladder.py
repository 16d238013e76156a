"""Time the steps of docs/10_add_rms_norm.md, from a thread per row to the kernels in use. Needs a GPU and nvcc.

    python3 examples/add_rms_norm/ladder.py --json FILE --plot FILE.svg

The steps are in ladder.cu, which has no torch in it: they are called as C functions.
"""

import ctypes
import itertools
import textwrap
from collections.abc import Callable, Iterator
from functools import partial

import torch
from add_rms_norm import HERE, build, operators
from bench import Inputs, lesson
from torch import Tensor

SHAPES = [(16384, 4096), (65536, 256), (64, 4096), (2048, 65536)]
STEPS = {
    "forward": [
        "a thread per row",
        "a block per row, sum by a tree in shared memory",
        "sum by warp shuffles",
        "16-byte vectors",
        "the row in registers",
        "the kernel in use",
    ],
    "backward": ["by columns, the rows read twice", "the row in registers", "the kernel in use: next row ahead"],
}


def compile_steps() -> ctypes.CDLL:
    return ctypes.CDLL(operators.load("rms_norm_ladder", [HERE / "ladder.cu"], operators.target_flags(oldest=75)))


def call(function: Callable, step: int, tensors: list[Tensor], *sizes: int) -> None:
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in tensors]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    torch.cuda.check_error(function(step, *pointers, *map(ctypes.c_int64, sizes), stream))


def forward(library: ctypes.CDLL, step: int, a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    if step == len(STEPS["forward"]):
        return torch.ops.add_rms_norm.add_rms_norm(a, b, w, 1e-6)
    y, s, rstd = torch.empty_like(a), torch.empty_like(a), a.new_empty(len(a), dtype=torch.float32)
    call(library.launch_forward_step, step, [y, s, rstd, a, b, w], *a.shape)
    return y, s, rstd


def backward(library: ctypes.CDLL, step: int, *inputs: Tensor) -> tuple[Tensor, ...]:
    if step == len(STEPS["backward"]):
        return torch.ops.add_rms_norm.add_rms_norm_backward(*inputs)
    _, _, s, w, rstd = inputs  # after dy and ds
    dx, dw, means = (torch.empty_like(x) for x in (s, w, rstd))
    sums = rstd.new_empty(torch.cuda.get_device_properties(0).multi_processor_count, len(w))
    call(library.launch_backward_step, step, [dx, dw, sums, means, *inputs], *s.shape, len(sums))
    return dx, dw


def measure(where: dict) -> Iterator[dict]:
    """Check the results of every step against the last one's, then time it."""
    library, peak = compile_steps(), where["peak_gb_per_s"]
    for (rows, width), (what, run) in itertools.product(SHAPES, (("forward", forward), ("backward", backward))):
        inputs = Inputs(rows, width, backward=False)
        if what == "backward":  # four tensors, as forward: dx, dy, ds, s
            if width != 4096:
                continue
            made = [torch.ops.add_rms_norm.add_rms_norm(*each, 1e-6) for each in inputs.inputs]
            inputs.inputs = [(a, b, s, w, r) for (a, b, w), (_, s, r) in zip(inputs.inputs, made, strict=True)]
        expected = run(library, len(STEPS[what]), *inputs.inputs[0])
        row = {"pass": what, "rows": rows, "width": width, "floor_us": inputs.bytes / peak * 1e-3}
        for i, name in enumerate(STEPS[what], 1):
            if width > 4096 and (i == 1 or name == "the row in registers"):
                continue  # takes too long; does not fit
            step = partial(run, library, i)
            torch.testing.assert_close(step(*inputs.inputs[0]), expected, rtol=0.02, atol=0.02)
            us = inputs.time(step)
            yield row | {"step": name, "us": us, "of_peak": row["floor_us"] / us}


def plot(figure, content: dict) -> None:
    """Time of each step over the time that the memory needs, a marker for each shape."""
    names = [f"{what}: {name}" for what in STEPS for name in STEPS[what]]
    figure.set_size_inches(5.6, 7)
    panel = figure.subplots()
    for (rows, width), marker, colour in zip(SHAPES, "os^D", ("#1b9e77", "#d95f02", "#7570b3", "#777777"), strict=True):
        lines = [row for row in content["results"] if (row["rows"], row["width"]) == (rows, width)]
        places = [names.index(f"{row['pass']}: {row['step']}") for row in lines]
        times = [row["us"] / row["floor_us"] for row in lines]
        panel.plot(times, places, marker, color=colour, markersize=8, alpha=0.8, label=f"{rows} x {width}")
    panel.set_title(f"{content['environment']['dtype']}, {content['environment']['name']}", loc="left")
    panel.axvline(1, color="black", linestyle="--", linewidth=1)
    panel.set(xscale="log", xlabel="time over the memory's floor")
    panel.set_yticks(range(len(names)), [textwrap.fill(name, 22) for name in names])
    panel.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=2)


if __name__ == "__main__":
    lesson.report(
        lesson.options(__doc__, has_plot=True).parse_args(), partial(operators.is_ready, build), measure, plot
    )
