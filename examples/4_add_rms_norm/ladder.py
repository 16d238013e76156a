"""Time the steps of docs/9_add_rms_norm.md, from a thread per row to the kernels in use. Needs a GPU and nvcc.

    python3 examples/4_add_rms_norm/ladder.py --json FILE --plot FILE.svg

The steps are in ladder.cu, which has no torch in it: they are called as C functions.
"""

import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from add_rms_norm import HERE
from bench import Inputs
from results import arguments, digits, report
from torch import Tensor
from torch.utils import cpp_extension

SHAPES = [(16384, 4096), (65536, 256), (64, 4096), (2048, 65536)]
FORWARD = [
    "a thread per row",
    "a block per row, sum by a tree in shared memory",
    "sum by warp shuffles",
    "16-byte vectors",
    "the row in registers",
    "the kernel in use",
]
BACKWARD = ["by columns, the rows read twice", "the row in registers", "the kernel in use: next row ahead"]


def compile_steps() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        options = {"extra_cuda_cflags": ["-O3"], "build_directory": folder, "is_python_module": False}
        cpp_extension.load("ladder", [str(HERE / "ladder.cu")], **options)
        library = ctypes.CDLL(str(Path(folder, "ladder.so")))
    library.launch_forward_step.restype = library.launch_backward_step.restype = ctypes.c_char_p
    return library


def call(function: Callable, step: int, tensors: list[Tensor], *numbers: int) -> None:
    """Pointers, then the number of rows as 64 bits, then ints, then the stream."""
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in tensors]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if error := function(step, *pointers, ctypes.c_int64(numbers[0]), *map(ctypes.c_int, numbers[1:]), stream):
        raise RuntimeError(error.decode())


def forward_step(library: ctypes.CDLL, step: int) -> Callable[..., tuple[Tensor, ...]]:
    """Step 1 to 6, with the signature of the operator."""
    if step == len(FORWARD):
        return lambda a, b, w: torch.ops.add_rms_norm.add_rms_norm(a, b, w, 1e-6)

    def run(a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y, s, rstd = torch.empty_like(a), torch.empty_like(a), a.new_empty(len(a), dtype=torch.float32)
        call(library.launch_forward_step, step, [y, s, rstd, a, b, w], *a.shape)
        return y, s, rstd

    return run


def backward_step(library: ctypes.CDLL, step: int) -> Callable[..., tuple[Tensor, ...]]:
    """Step 1 to 3, of dy, ds, s, weight, rstd."""
    if step == len(BACKWARD):
        return torch.ops.add_rms_norm.add_rms_norm_backward
    parts = torch.cuda.get_device_properties(0).multi_processor_count

    def run(dy: Tensor, ds: Tensor, s: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
        dx, dw, means = (torch.empty_like(x) for x in (s, w, rstd))
        sums = rstd.new_empty(parts, len(w))
        call(library.launch_backward_step, step, [dx, dw, sums, means, dy, ds, s, w, rstd], *s.shape, parts)
        return dx, dw

    return run


def measure(library: ctypes.CDLL, rows: int, width: int, peak: float) -> list[dict]:
    """Check the results of every step against the last one's, then time it. peak is the memory's, in GB/s."""
    found = []
    for what, names, make in (("forward", FORWARD, forward_step), ("backward", BACKWARD, backward_step)):
        inputs = Inputs(rows, width, backward=False)
        if what == "backward":  # four tensors, as forward: dx, dy, ds, s
            if width != 4096:
                continue
            with torch.no_grad():
                made = [torch.ops.add_rms_norm.add_rms_norm(a, b, w, 1e-6) for a, b, w in inputs.inputs]
            inputs.inputs = [(a, b, s, w, r) for (a, b, w), (_, s, r) in zip(inputs.inputs, made, strict=True)]
        expected = make(library, len(names))(*inputs.inputs[0])
        floor = inputs.bytes / peak * 1e-3
        for i, name in enumerate(names, 1):
            if width > 4096 and (i == 1 or name == "the row in registers"):
                continue  # takes too long; does not fit
            step = make(library, i)
            torch.testing.assert_close(step(*inputs.inputs[0]), expected, rtol=0.02, atol=0.02)
            us = inputs.time(step)
            line = {"pass": what, "step": name, "rows": rows, "width": width, "us": us}
            found.append(line | {"floor_us": digits(floor), "of_peak": digits(floor / us)})
            print(f"{what:>8} {rows:>6} x {width:<5} {name:<48}{us:>10} us {floor / us:>8.1%} of the peak", flush=True)
    return found


def plot(path: Path, content: dict) -> None:
    """Time of each step, and the memory's floor; a panel for each shape."""
    from matplotlib.figure import Figure

    names = [f"forward: {name}" for name in FORWARD] + [f"backward: {name}" for name in BACKWARD]
    figure = Figure(figsize=(14, 4), layout="constrained")
    panels = figure.subplots(1, len(SHAPES), sharey=True)
    for panel, (rows, width) in zip(panels, SHAPES, strict=True):
        lines = [row for row in content["results"] if (row["rows"], row["width"]) == (rows, width)]
        places = [-names.index(f"{row['pass']}: {row['step']}") for row in lines]
        colours = ["#1b9e77" if row["pass"] == "forward" else "#7570b3" for row in lines]
        us, floor = [row["us"] for row in lines], lines[0]["floor_us"]
        panel.bar_label(panel.barh(places, us, color=colours), fmt="%.4g")
        panel.axvline(floor, color="black", linestyle="--", linewidth=1, label="memory's floor")
        panel.set(xscale="log", xlim=(floor / 1.5, 6 * max(us)), title=f"{rows} rows of {width}", xlabel="microseconds")
        panel.minorticks_off()
    panels[0].set_yticks([-i for i in range(len(names))], names)
    panels[0].legend(loc="lower right")
    where = content["environment"]
    figure.suptitle(f"residual add + RMSNorm in steps, bfloat16, {where['name']}")
    figure.savefig(path)


def measure_all(peak: float) -> list[dict]:
    library = compile_steps()
    return [row for rows, width in SHAPES for row in measure(library, rows, width, peak)]


if __name__ == "__main__":
    report(arguments(__doc__.splitlines()[0]), measure_all, plot)
