"""Check and time the rungs of docs/17_decode_attention.md, and the operator. Timing takes nvcc and a GPU from sm_90 on.

    python3 examples/decode_attention/ladder.py --json FILE
    python3 examples/decode_attention/ladder.py --once 4096      # each rung once, for 4096 tokens: for a profiler

Without a GPU, or with --emulate, rungs run in the emulator: their values, sectors and bank conflicts, no times.
GPU time without launches, by CUDA graphs. The cache of a call comes from memory, as in bench.py. A rung that needs more
than the GPU has is left out: the last one wants 211 KB of shared memory per block, and an RTX 5090 has 99.
"""

import statistics
import sys
from collections.abc import Iterator
from functools import partial

import torch
from bench import LLAMA, exact, kernels, lesson, make, relative_error, rotate_sets, time_calls
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


def run_all(inputs: tuple[Tensor, ...]) -> Iterator[tuple[str, Tensor]]:
    """The name and the result of each rung that runs here, and of the operator."""
    for name, call in CALLS.items():
        try:
            out = call(*inputs)
        except RuntimeError as reason:
            if name == OPERATOR:
                raise
            print(f"{name} is left out: {reason}")
            continue
        yield name, out


def measure_size(batch: int, tokens: int, peak: float) -> Iterator[dict]:
    size = 4 * batch * LLAMA[1] * tokens * LLAMA[2]
    inputs = rotate_sets(partial(make, batch, tokens, *LLAMA), size)
    right = exact(*(x.double() for x in inputs[0][:3]))[:, :, 0]
    calls = {}
    for name, out in run_all(inputs[0]):
        if not (error := relative_error(out, right)) <= 0.006:
            sys.exit(f"{name} is wrong at {batch} x {tokens}: the error is {error:.2%}, expected 0.6% at most")
        calls[name] = CALLS[name]
    rounds = [{name: time_calls(call, inputs) for name, call in calls.items()} for _ in range(3)]
    for name in calls:
        us = statistics.median(each[name] for each in rounds)
        of_attend = statistics.median(each[OPERATOR] / each[name] for each in rounds)
        row = {"batch": batch, "tokens": tokens, "rung": name, "us": us}
        yield row | {"of_peak": size / peak * 1e-3 / us, "of_attend": of_attend}


def count() -> Iterator[dict]:
    """All rungs in the emulator: sectors and bank conflicts for 8 heads, 2 key heads and 100 tokens."""
    launchers = kernels.load(HERE / "ladder.cu", f"-I{HERE.parent}", emulate=True)
    q, keys, values = (torch.randn(1, *shape, 128).bfloat16() for shape in ((8,), (2, 100), (2, 100)))

    def run(rung: int) -> Tensor:
        out = torch.empty_like(q)
        launchers.launch("launch_ladder", rung, out, q, keys, values, q.shape[1], keys.shape[2])
        return out

    right = exact(*(x.double() for x in (q, keys, values)))[:, :, 0]
    yield from kernels.count_rungs(launchers, RUNGS, run, right, 0.006)


def measure(once: int | None, where: dict) -> Iterator[dict]:
    if once:
        for _ in run_all(make(1, once, *LLAMA)):
            pass
        torch.cuda.synchronize()
        sys.exit()
    for size in SIZES:
        yield from measure_size(*size, where["peak_gb_per_s"])


if __name__ == "__main__":
    parser = lesson.options(__doc__)
    parser.add_argument("--once", type=int, metavar="N", help="only run each rung once, for N tokens; no results")
    kernels.add_option(parser)
    args = parser.parse_args()
    lesson.report_or_count(args, partial(operators.is_ready, build), partial(measure, args.once), count)
