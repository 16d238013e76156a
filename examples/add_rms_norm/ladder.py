"""Check and time the rungs of docs/14_add_rms_norm.md, and the operator. Timing takes nvcc and a GPU from sm_90 on.

    python3 examples/add_rms_norm/ladder.py --json FILE

Without a GPU, or with --emulate, rungs run in the emulator: their values, sectors and bank conflicts, no times.
GPU time without launches, by CUDA graphs. The data of a call comes from memory, as in bench.py.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
from add_rms_norm import HERE, build, operators, reference
from bench import Inputs
from common import ladders
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


def make_size(inputs: Inputs, point: dict, calls: dict[str, Callable]) -> ladders.Size:
    """The operator is the last contestant: the others are checked against it. Both passes move four tensors."""
    *_, standard = calls
    first = inputs.inputs[0]

    @cache
    def expected() -> tuple[Tensor, ...]:
        return calls[standard](*first)

    def error(found: tuple[Tensor, ...]) -> float:
        """The largest of all elements, relative to 1 + the right one."""
        pairs = zip(found, expected(), strict=True)
        return max(((x.double() - y.double()).abs() / (1 + y.double().abs())).max().item() for x, y in pairs)

    return ladders.Size(
        facts=point,
        calls={name: partial(call, *first) for name, call in calls.items()},
        standard=standard,
        error=error,
        most=0.02,
        time=partial(ladders.in_turn, lambda name: inputs.time(calls[name]), rounds=1),
        columns=lambda us: {"of_peak": point["floor_us"] / us},
    )


def forward_size(rows: int, width: int, peak: float) -> ladders.Size:
    inputs = Inputs(rows, width, backward=False)
    operator = partial(torch.ops.add_rms_norm.add_rms_norm, eps=1e-6)
    calls = {RUNGS[rung]: partial(forward, rung) for rung in range(1 if width <= 16384 else 2, 7)}  # 1 is too slow
    point = {"rows": rows, "width": width, "floor_us": inputs.bytes / peak * 1e-3}
    return make_size(inputs, point, calls | {OPERATOR: operator})


def backward_size(rows: int, width: int, peak: float) -> ladders.Size:
    inputs = Inputs(rows, width, backward=False)
    made = [torch.ops.add_rms_norm.add_rms_norm(*each, 1e-6) for each in inputs.inputs]
    inputs.inputs = [(a, b, s, w, rstd) for (a, b, w), (_, s, rstd) in zip(inputs.inputs, made, strict=True)]
    calls = {RUNGS[rung]: partial(backward, rung) for rung in (7, 8)}
    point = {"rows": rows, "width": width, "floor_us": inputs.bytes / peak * 1e-3}
    return make_size(inputs, point, calls | {GRADIENT: torch.ops.add_rms_norm.add_rms_norm_backward})


def sizes(peak: float) -> Iterator[ladders.Size]:
    inputs = small_inputs()
    check_reference(forward(0, *inputs)[0], *inputs)
    for rows, width in SIZES:
        yield forward_size(rows, width, peak)
        if width == 4096:
            yield backward_size(rows, width, peak)


def small_inputs() -> list[Tensor]:
    """a, b, weight for 20 rows of 512, on a CPU."""
    return [torch.randn(20, 512).bfloat16(), torch.randn(20, 512).bfloat16(), torch.randn(512).bfloat16()]


def check_reference(y: Tensor, a: Tensor, b: Tensor, weight: Tensor) -> None:
    """Rung 0, the reference on a CPU, against torch. Ends the program if it differs."""
    right = reference((a + b).float(), torch.zeros(()), weight.float())[0]
    if not (error := ((y - right).norm() / right.norm()).item()) <= 0.01:
        sys.exit(f"the reference is wrong: the error is {error:.2%}, expected 1% at most")


def emulated(launch: Callable) -> ladders.Emulated:
    """All rungs for 20 rows of 512 (the gradient with three blocks), and the right result: y, dx and dweight. A rung
    computes its part; the rest is the right one."""
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
    return ladders.Emulated(RUNGS, call, expected, 0.01)


if __name__ == "__main__":
    ladders.run(
        __doc__,
        HERE / "ladder.cu",
        is_ready=partial(operators.is_ready, build),
        sizes=sizes,
        once=lambda n: forward_size(n, 4096, peak=1.0),
        once_is="for N rows of 4096",
        emulated=emulated,
        ratio="of_operator",
    )
