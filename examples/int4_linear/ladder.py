"""Time the steps of docs/12_int4_linear.md, from one warp per output to the operator. Needs an H100 or H200, and nvcc.

python3 examples/int4_linear/ladder.py --json FILE
"""

import ctypes
from collections.abc import Iterator
from functools import partial

import torch
from bench import floor_us, inputs, is_ready, lesson, time_calls
from int4_linear import GROUP, HERE, dequantize, int4_linear, operators, pack
from torch import Tensor

N = K = 8192
FIRST = "one warp per output"
OPERATOR = "the plan: shape and blocks along K by size"
STEPS = {  # batch: name, an index of kShapes in plan.h, blocks that share K
    1: [(FIRST, -1, 1), ("tensor cores, copies in the background", 1, 1)],
    16: [(FIRST, -1, 1), ("mma.sync, 8 rows of x", 1, 1), ("mma.sync, 16 rows of x", 3, 1)],
    256: [
        ("mma.sync, 32 rows of x", 5, 1),
        ("wgmma, 64 rows of x", 10, 1),
        ("wgmma, 256 rows of x", 21, 1),
        ("wgmma, 256 rows of x, two blocks share K", 21, 2),
    ],
}


class Int4Call(ctypes.Structure):
    """As in int4_linear.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("packed", "scale", "zero")]
    _fields_ += [("n", ctypes.c_int), ("k", ctypes.c_int), ("is_float16", ctypes.c_bool), ("is_gated", ctypes.c_bool)]
    _fields_ += [(name, ctypes.c_void_p) for name in ("y", "x", "bias")] + [("batch", ctypes.c_int)]


def call_step(library: ctypes.CDLL, shape: int, splits: int, weight: tuple, x: Tensor) -> Tensor:
    y = x.new_empty(len(x), N)
    packed, scale, zero = (each.data_ptr() for each in weight)
    call = Int4Call(packed, scale, zero, N, K, False, False, y.data_ptr(), x.data_ptr(), None, len(x))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if error := library.launch_step(shape, splits, ctypes.byref(call), stream):
        raise RuntimeError(error.decode())
    return y


def row_by_row(codes: Tensor) -> Tensor:
    """Codes [N, K] as words [N, K/8]: column 2 i + j of a word is code 4 j + i."""
    eight = codes.view(N, K // 8, 4, 2).transpose(2, 3).reshape(N, K // 8, 8).long()
    return sum(eight[..., i] << 4 * i for i in range(8)).to(torch.uint32).view(torch.int32)


def measure(where: dict) -> Iterator[dict]:
    sources = [HERE / "ladder.cu", HERE / "int4_linear_kernel.cu"]
    flags = operators.target_flags(oldest=80, hopper=True)
    library = ctypes.CDLL(operators.load("int4_ladder", sources, flags))
    library.launch_step.restype = ctypes.c_char_p
    plain, packed = [], []  # the same weights, row by row and in the operator's order
    for _ in inputs(N, K, 1):
        codes, zero = (torch.randint(0, 16, shape, device="cuda") for shape in ((N, K), (N, K // GROUP)))
        packed.append(pack(codes, torch.rand(N, K // GROUP, device="cuda").bfloat16(), zero))
        plain.append((row_by_row(codes), *packed[-1][1:]))
    for batch, steps in STEPS.items():
        xs, floor = inputs(N, K, batch), floor_us(N, K, batch, where["peak_gb_per_s"])
        right = xs[0].float() @ dequantize(*packed[0]).float().t()
        rungs = {}
        for name, *shape in steps:
            rungs[name] = [partial(call_step, library, *shape, each) for each in (plain if name == FIRST else packed)]
        rungs[OPERATOR] = [lambda x, weight=weight: int4_linear(x, *weight) for weight in packed]
        for name, layers in rungs.items():
            torch.testing.assert_close(layers[0](xs[0]).float(), right, rtol=0.02, atol=0.02 * right.abs().max().item())
            us = time_calls(layers, xs)
            yield {"batch": batch, "step": name, "us": us, "of_peak": floor / us}


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), is_ready, measure)
