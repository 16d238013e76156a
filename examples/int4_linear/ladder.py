"""Check and time the rungs of docs/16_int4_linear.md, and the operator. Timing takes nvcc and an H100 or H200.

    python3 examples/int4_linear/ladder.py --json FILE

Without a GPU, or with --emulate, rungs run in the emulator: their values, sectors and bank conflicts, no times.
GPU time without launches, by CUDA graphs. Calls rotate among weights of four times the L2 cache, as in bench.py.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import torch
from bench import floor_us, inputs, is_ready, time_calls
from common import ladders
from int4_linear import GROUP, HERE, build, dequantize, int4_linear, operators, pack
from torch import Tensor

RUNGS = {
    1: "one warp per output",
    2: "tensor cores",
    3: "loads ahead",
    4: "many rows: wgmma, TMA",
    5: "two blocks share K",
}
ROW_BY_ROW = (1,)  # reads plain codes; the others, and the operator, packed ones
OPERATOR = "int4_linear"
N = K = 8192
BATCHES = {1: (1, 2, 3), 128: (2, 4, 5)}  # rows of x: rungs
FLAGS = operators.target_flags(oldest=90, hopper=True)
load = partial(operators.load_launcher, "int4_ladder", HERE / "ladder.cu", *FLAGS)


def multiply(rung: int, weight: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """x [m, K] times a weight of codes, scales and zeros, by one rung; RuntimeError if it does not run here."""
    y = x.new_empty(len(x), weight[1].shape[1])
    operators.launch(load(), rung, y, x, *weight, len(x), y.shape[1], x.shape[1])
    return y


def row_by_row(codes: Tensor) -> Tensor:
    """Codes [N, K] as words [N, K / 8]: the first of eight columns in the lowest 4 bits."""
    eight = codes.view(len(codes), -1, 8).long()
    return sum(eight[..., i] << 4 * i for i in range(8)).to(torch.uint32).view(torch.int32)


def make_weights(n: int, k: int, device: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A random weight [n, k] twice: row by row, and packed as quantize() does it."""
    codes, zero = (torch.randint(0, 16, shape, device=device) for shape in ((n, k), (n, k // GROUP)))
    packed = pack(codes, torch.rand(n, k // GROUP, device=device).bfloat16(), zero)
    return (row_by_row(codes), *packed[1:]), packed


def make_size(batch: int, rungs: Sequence[int], weights: list, peak: float) -> ladders.Size:
    xs = inputs(N, K, batch)
    layers = {}
    for rung in rungs:
        which = 0 if rung in ROW_BY_ROW else 1
        layers[RUNGS[rung]] = [partial(multiply, rung, pair[which]) for pair in weights]
    layers[OPERATOR] = [lambda x, weight=packed: int4_linear(x, *weight) for _, packed in weights]

    @cache
    def right() -> Tensor:
        return xs[0].float() @ dequantize(*weights[0][1]).float().t()

    return ladders.Size(
        facts={"batch": batch},
        calls={name: partial(each[0], xs[0]) for name, each in layers.items()},
        standard=OPERATOR,
        error=lambda y: ((y - right()).norm() / right().norm()).item(),
        most=0.01,
        time=partial(ladders.in_turn, lambda name: time_calls(layers[name], xs), rounds=3),
        columns=lambda us: {"of_peak": floor_us(N, K, batch, peak) / us},
    )


def sizes(peak: float) -> Iterator[ladders.Size]:
    weights = [make_weights(N, K, "cuda") for _ in inputs(N, K, 1)]
    for batch, rungs in BATCHES.items():
        yield make_size(batch, rungs, weights, peak)


def emulated(launch: Callable) -> ladders.Emulated:
    """The rungs without wgmma, for 4 rows of x, N = 192, K = 256."""
    weights, x = make_weights(192, 256, "cpu"), torch.randn(4, 256).bfloat16()
    build()

    def call(rung: int) -> Tensor:
        weight = weights[0 if rung in ROW_BY_ROW else 1]
        y = x.new_empty(len(x), 192)
        launch(rung, y, x, *weight, *y.shape, x.shape[1])
        return y

    rungs = {rung: name for rung, name in RUNGS.items() if rung < 4}
    return ladders.Emulated(rungs, call, x.float() @ dequantize(*weights[1]).float().t(), 0.01)


if __name__ == "__main__":
    ladders.run(
        __doc__,
        HERE / "ladder.cu",
        is_ready=is_ready,
        sizes=sizes,
        once=lambda n: make_size(n, [*RUNGS], [make_weights(N, K, "cuda")], peak=1.0),
        once_is="for N rows of x",
        emulated=emulated,
        ratio="of_int4_linear",
    )
