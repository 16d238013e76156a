"""Check and time the rungs of docs/14_add_rms_norm.md, and the operator. Timing takes nvcc and a GPU from sm_90 on.

    python3 examples/add_rms_norm/ladder.py --json FILE

Without a GPU, or with --emulate, rungs run in the emulator: their values, sectors and bank conflicts, no times.
GPU time without launches, by CUDA graphs. The data of a call comes from memory, as in bench.py.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from add_rms_norm import HERE, build, operators, reference
from bench import Inputs, kernels, lesson
from torch import Tensor

RUNGS = {
    1: "one thread per row",
    2: "one block per row",
    3: "16-byte vectors",
    4: "the row in registers",
    5: "blocks that fit the row",
    6: "clusters, early start",
    7: "gradient: sums in registers",
    8: "gradient: next row ahead",
}
OPERATOR, GRADIENT = "add_rms_norm", "gradient: add_rms_norm"
SIZES = [(16384, 4096), (4096, 16384), (65536, 256), (64, 4096), (2048, 65536)]  # rows, width
TENSORS = "y", "s", "rstd", "a", "b", "weight", "dx", "dweight", "sums", "dy", "ds"
load = partial(operators.load_launcher, "rms_norm_ladder", HERE / "ladder.cu", "-arch=sm_90")


class Problem(ctypes.Structure):
    """As in ladder.cu."""

    _fields_ = [(name, ctypes.c_void_p) for name in TENSORS]
    _fields_ += [("rows", ctypes.c_int64), ("width", ctypes.c_int), ("blocks", ctypes.c_int)]


def make_problem(blocks: int, **tensors: Tensor) -> Problem:
    rows, width = tensors["s"].shape
    pointers = {name: x.data_ptr() for name, x in tensors.items()}
    return Problem(**pointers, rows=rows, width=width, blocks=blocks)


def launch(rung: int, blocks: int = 0, **tensors: Tensor) -> None:
    """RuntimeError if the rung does not run here, or not with these sizes."""
    operators.launch(load(), rung, ctypes.byref(make_problem(blocks, **tensors)))


def forward(rung: int, a: Tensor, b: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    y, s, rstd = torch.empty_like(a), torch.empty_like(a), a.new_empty(len(a), dtype=torch.float32)
    launch(rung, y=y, s=s, rstd=rstd, a=a, b=b, weight=weight)
    return y, s, rstd


def backward(rung: int, dy: Tensor, ds: Tensor, s: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
    dx, dweight = torch.empty_like(s), torch.empty_like(weight)
    blocks = min(len(s), 2 * torch.cuda.get_device_properties(0).multi_processor_count)
    sums = rstd.new_empty(blocks, len(weight))
    launch(rung, blocks, dx=dx, dweight=dweight, sums=sums, dy=dy, ds=ds, s=s, weight=weight, rstd=rstd)
    return dx, dweight


def measure_size(rows: int, width: int, peak: float) -> Iterator[dict]:
    """Rows for each rung and the operator. Both passes move four tensors."""
    operator, gradient = torch.ops.add_rms_norm.add_rms_norm, torch.ops.add_rms_norm.add_rms_norm_backward
    inputs = Inputs(rows, width, backward=False)
    point = {"rows": rows, "width": width, "floor_us": inputs.bytes / peak * 1e-3}
    calls = {RUNGS[rung]: partial(forward, rung) for rung in range(1 if width <= 16384 else 2, 7)}  # 1 is too slow
    yield from time_rungs(point, inputs, calls | {OPERATOR: partial(operator, eps=1e-6)})
    if width == 4096:
        made = [operator(*each, 1e-6) for each in inputs.inputs]
        inputs.inputs = [(a, b, s, w, rstd) for (a, b, w), (_, s, rstd) in zip(inputs.inputs, made, strict=True)]
        calls = {RUNGS[rung]: partial(backward, rung) for rung in (7, 8)}
        yield from time_rungs(point, inputs, calls | {GRADIENT: gradient})


def time_rungs(point: dict, inputs: Inputs, calls: dict[str, Callable]) -> Iterator[dict]:
    """Check the results of each rung against the operator's, the last one, then time it."""
    *_, operator = calls.values()
    expected, of_operator = operator(*inputs.inputs[0]), inputs.time(operator)
    for name, call in calls.items():
        try:
            torch.testing.assert_close(call(*inputs.inputs[0]), expected, rtol=0.02, atol=0.02)
        except RuntimeError as error:
            print(f"{name} is left out: {error}")
            continue
        except AssertionError as error:
            sys.exit(f"{name} is wrong at {point['rows']} x {point['width']}: {error}")
        us = of_operator if call is operator else inputs.time(call)
        yield point | {"rung": name, "us": us, "of_peak": point["floor_us"] / us, "of_operator": of_operator / us}


def small_inputs() -> list[Tensor]:
    """a, b, weight for 20 rows of 512, on a CPU."""
    return [torch.randn(20, 512).bfloat16(), torch.randn(20, 512).bfloat16(), torch.randn(512).bfloat16()]


def check_reference(y: Tensor, a: Tensor, b: Tensor, weight: Tensor) -> None:
    """Rung 0, the reference on a CPU, against torch. Ends the program if it differs."""
    try:
        torch.testing.assert_close(
            y.float(), reference((a + b).float(), torch.zeros(()), weight.float())[0], rtol=0.01, atol=0.01
        )
    except AssertionError as error:
        sys.exit(f"the reference is wrong: {error}")


def emulated(launch: Callable) -> tuple[Callable[[int], Tensor], Tensor]:
    """A call that runs a rung for 20 rows of 512 (the gradient with three blocks), and the right result: y, dx and
    dweight. A rung computes its part; the rest is the right one."""
    (a, b, weight), (dy, ds, _) = small_inputs(), small_inputs()
    s, rstd, n = torch.empty_like(a), torch.empty(len(a)), len(a)

    def run(rung: int, blocks: int = 0, **tensors: Tensor) -> None:
        tensors |= {"s": s, "weight": weight, "rstd": rstd}
        launch(rung, ctypes.byref(make_problem(blocks, **tensors)), tensors=tensors)

    def call(rung: int) -> Tensor:
        found = expected.clone()
        if rung < 7:
            run(rung, y=found[:n], a=a, b=b)
        else:
            sums = torch.empty(3, len(weight))
            run(rung, len(sums), dx=found[n:-1], dweight=found[-1], sums=sums, dy=dy, ds=ds)
        return found

    inputs = [x.float().requires_grad_() for x in (a + b, weight)]
    y, _ = reference(inputs[0], torch.zeros(()), inputs[1])
    dx, dweight = torch.autograd.grad(y, inputs, dy.float())
    expected = torch.cat([y.detach(), dx + ds, dweight[None]]).bfloat16()
    check_reference(call(0)[:n], a, b, weight)
    return call, expected


def count() -> Iterator[dict]:
    """The rungs in the emulator: sectors and bank conflicts."""
    launchers = kernels.load(HERE / "ladder.cu", f"-I{HERE.parent}", emulate=True)
    call, expected = emulated(partial(launchers.launch, "launch_ladder"))
    yield from kernels.count_rungs(launchers, RUNGS, call, expected, 0.01)


def measure(where: dict) -> Iterator[dict]:
    inputs = small_inputs()
    check_reference(forward(0, *inputs)[0], *inputs)
    for size in SIZES:
        yield from measure_size(*size, where["peak_gb_per_s"])


if __name__ == "__main__":
    parser = lesson.options(__doc__)
    kernels.add_option(parser)
    args = parser.parse_args()
    lesson.report_or_count(args, partial(operators.is_ready, build), measure, count)
