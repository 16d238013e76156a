"""Check and time the rungs of docs/17_decode_attention.md, and the operator. Timing takes nvcc and a GPU from sm_90 on.

    python3 examples/decode_attention/ladder.py --json FILE
    python3 examples/decode_attention/ladder.py --once 4096      # each rung once, for 4096 tokens: for a profiler

Without a GPU, or with --emulate, rungs run in the emulator: their values, sectors and bank conflicts, no times.
GPU time without launches, by CUDA graphs. The cache of a call comes from memory, as in bench.py. A rung that needs more
than the GPU has is left out: the last one wants 211 KB of shared memory per block, and an RTX 5090 has 99.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from bench import LLAMA, exact, make, relative_error, rotate_sets, time_calls
from common import ladders
from decode_attention import HERE, attend, build, operators
from torch import Tensor

RUNGS = {
    1: "one warp per head",
    2: "tokens split over warps",
    3: "16-byte loads, eight tokens at a time",
    4: "tensor cores, four heads together",
    5: "copies ahead",
}
OPERATOR = "attend"
SIZES = [(1, 4096), (16, 1024)]  # batch, tokens
load = partial(operators.load_launcher, "attention_ladder", HERE / "ladder.cu", "-arch=sm_90")


def attend_by(rung: int, q: Tensor, keys: Tensor, values: Tensor, _: Tensor) -> Tensor:
    """attend() over a full cache, by one rung; RuntimeError if it does not run here."""
    out = torch.empty_like(q)
    operators.launch(load(), rung, out, q, keys, values, q.shape[0] * q.shape[1], keys.shape[2])
    return out


CALLS = {name: partial(attend_by, rung) for rung, name in RUNGS.items()} | {OPERATOR: attend}


def make_size(batch: int, tokens: int, peak: float) -> ladders.Size:
    size = 4 * batch * LLAMA[1] * tokens * LLAMA[2]
    inputs = rotate_sets(partial(make, batch, tokens, *LLAMA), size)

    @cache
    def right() -> Tensor:
        return exact(*(x.double() for x in inputs[0][:3]))[:, :, 0]

    return ladders.Size(
        facts={"batch": batch, "tokens": tokens},
        calls={name: partial(call, *inputs[0]) for name, call in CALLS.items()},
        standard=OPERATOR,
        error=lambda out: relative_error(out, right()),
        most=0.006,
        time=partial(ladders.in_turn, lambda name: time_calls(CALLS[name], inputs), rounds=3),
        columns=lambda us: {"of_peak": size / peak * 1e-3 / us},
    )


def emulated(launch: Callable) -> ladders.Emulated:
    """All rungs, for 8 heads, 2 key heads and 100 tokens."""
    q, keys, values = (torch.randn(1, *shape, 128).bfloat16() for shape in ((8,), (2, 100), (2, 100)))

    def call(rung: int) -> Tensor:
        out = torch.empty_like(q)
        launch(rung, out, q, keys, values, q.shape[1], keys.shape[2])
        return out

    right = exact(*(x.double() for x in (q, keys, values)))[:, :, 0]
    return ladders.Emulated(RUNGS, call, right, 0.006)


if __name__ == "__main__":
    ladders.run(
        __doc__,
        HERE / "ladder.cu",
        is_ready=partial(operators.is_ready, build),
        sizes=lambda peak: (make_size(*size, peak) for size in SIZES),
        once=lambda n: make_size(1, n, peak=1.0),
        once_is="for N tokens",
        emulated=emulated,
        ratio="of_attend",
    )
