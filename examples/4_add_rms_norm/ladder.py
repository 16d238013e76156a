"""Time the steps of docs/8_reduction.md, from a thread a row to the kernels in use. Needs a GPU and nvcc.

    python3 examples/4_add_rms_norm/ladder.py --json FILE --plot FILE.svg

The steps are in ladder.cu, which has no torch in it: they are called as C functions.
"""

import ctypes
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from add_rms_norm import HERE, build
from bench import Inputs
from results import arguments, digits, environment, finish, need_gpu, save
from torch import Tensor
from torch.utils import cpp_extension

SHAPES = [(16384, 4096), (65536, 256), (64, 4096)]
FORWARD = [
    "a thread a row",
    "a block a row, sum by a tree in shared memory",
    "sum by warp shuffles",
    "16-byte vectors, the row in registers",
    "several short rows a block",
    "starts while the one before ends",
]
BACKWARD = ["a block a row, atomic adds for the weight", "persistent blocks, sums in registers", "next row ahead"]


def compile_steps() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        cpp_extension.load(
            "ladder",
            [str(HERE / "ladder.cu")],
            extra_cuda_cflags=["-O3"],
            build_directory=folder,
            is_python_module=False,
        )
        return ctypes.CDLL(str(Path(folder, "ladder.so")))


def pointers(*values: Tensor | int) -> list:
    return [ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else ctypes.c_int64(x) for x in values]


def check(error: bytes | None) -> None:
    if error:
        raise RuntimeError(error.decode())


def forward_step(library: ctypes.CDLL, step: int) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    """Step 1 to 6, with the signature of the operator."""
    if step == len(FORWARD):
        return lambda a, b, w: torch.ops.add_rms_norm.add_rms_norm(a, b, w, 1e-6)
    library.launch_forward_step.restype = ctypes.c_char_p

    def call(a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y, s, rstd = torch.empty_like(a), torch.empty_like(a), a.new_empty(len(a), dtype=torch.float32)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        arguments = pointers(y, s, rstd, a, b, w, len(a))
        check(library.launch_forward_step(step, *arguments, ctypes.c_int(a.shape[1]), stream))
        return y, s, rstd

    return call


def backward_step(library: ctypes.CDLL, step: int) -> Callable[..., tuple[Tensor, ...]]:
    """Step 1 to 3: of dy, ds, s, weight, rstd."""
    if step == len(BACKWARD):
        return torch.ops.add_rms_norm.add_rms_norm_backward
    library.launch_backward_step.restype = ctypes.c_char_p
    blocks = torch.cuda.get_device_properties(0).multi_processor_count

    def call(dy: Tensor, ds: Tensor, s: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
        dx, dw, sums = torch.empty_like(s), torch.empty_like(w), rstd.new_empty(blocks, s.shape[1])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        arguments = pointers(dx, dw, sums, dy, ds, s, w, rstd, len(s))
        integers = ctypes.c_int(s.shape[1]), ctypes.c_int(blocks)
        check(library.launch_backward_step(step, *arguments, *integers, stream))
        return dx, dw

    return call


def measure(library: ctypes.CDLL, rows: int, width: int, peak: float) -> list[dict]:
    """Time every step, after a look whether its results are the last one's."""
    found = []
    for what, names, make in (("forward", FORWARD, forward_step), ("backward", BACKWARD, backward_step)):
        inputs = Inputs(rows, width, backward=False)
        if what == "backward":  # four tensors, as forward: dx, dy, ds, s
            with torch.no_grad():
                made = [torch.ops.add_rms_norm.add_rms_norm(a, b, w, 1e-6) for a, b, w in inputs.inputs]
            inputs.inputs = [(a, b, s, w, r) for (a, b, w), (_, s, r) in zip(inputs.inputs, made, strict=True)]
            del made
        expected = make(library, len(names))(*inputs.inputs[0])
        floor = inputs.bytes / peak * 1e-3
        for i, name in enumerate(names, 1):
            step = make(library, i)
            torch.testing.assert_close(step(*inputs.inputs[0]), expected, rtol=0.02, atol=0.02)
            us = digits(inputs.time(step).median_us)
            line = {"pass": what, "step": name, "rows": rows, "width": width, "us": us}
            found.append(line | {"floor_us": digits(floor), "of_peak": digits(floor / us)})
            print(f"{what:>8} {rows:>6} x {width:<5} {name:<48}{us:>10} us {floor / us:>8.1%} of the peak", flush=True)
    return found


def plot(path: Path, content: dict) -> None:
    """Time of each step, down to the memory's floor; a panel for each shape."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3), layout="constrained")
    panels = figure.subplots(1, len(SHAPES), sharey=True)
    for panel, (rows, width) in zip(panels, SHAPES, strict=True):
        lines = [row for row in content["results"] if (row["rows"], row["width"]) == (rows, width)][::-1]
        places = [i + 0.5 * (row["pass"] == "forward") for i, row in enumerate(lines)]  # apart from backward
        colours = ["#1b9e77" if row["pass"] == "forward" else "#7570b3" for row in lines]
        bars = panel.barh(places, [row["us"] for row in lines], color=colours)
        panel.bar_label(
            bars, [f"{row['us']:.3g}" if row["us"] < 1000 else f"{row['us']:.0f}" for row in lines], fontsize=8
        )
        panel.axvline(lines[0]["floor_us"], color="black", linestyle="--", linewidth=1, label="memory's floor")
        panel.set_xscale("log")
        panel.set_xlim(lines[0]["floor_us"] / 1.5, 6 * max(row["us"] for row in lines))
        panel.set_yticks(places, [f"{row['step']}" for row in lines], fontsize=8)
        panel.set_title(f"{rows} rows of {width}", fontsize=9)
        panel.tick_params(axis="x", labelsize=8)
        panel.set_xlabel("microseconds", fontsize=8)
        panel.minorticks_off()
    panels[0].legend(fontsize=7, loc="lower right")
    save(figure, path)


def main() -> None:
    args = arguments(__doc__.splitlines()[0])
    if args.source:
        return finish(args, json.loads(args.source.read_text()), plot)
    need_gpu()
    build()
    where, library = environment(), compile_steps()
    results = [row for rows, width in SHAPES for row in measure(library, rows, width, where["peak_gb_per_s"])]
    finish(args, {"environment": where, "results": results}, plot)


if __name__ == "__main__":
    main()
