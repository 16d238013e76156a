"""Check and time the seven rungs of docs/15_matmul.md against torch.matmul. Rungs 5 to 7 need Hopper.

    python3 examples/matmul/ladder.py                             # 4096 and 8192 cubed, and other sizes
    python3 examples/matmul/ladder.py --json FILE
    python3 examples/matmul/ladder.py --once 4096                 # each rung once: for a profiler

Without a GPU, or with --emulate, rungs run in the emulator: their values, sectors and bank conflicts, no times.
GPU time without launches, by CUDA graphs, with a cold cache: calls rotate among matrices that L2 cannot hold.
"""

import statistics
import sys
from collections.abc import Iterator
from functools import partial

import torch
from bench import clock, kernels, lesson
from gated_linear import FLAGS, HERE, operators
from torch import Tensor

RUNGS = {
    1: "one thread per element",
    2: "tiles in shared memory",
    3: "8 x 8 sums per thread",
    4: "tensor cores: mma.sync",
    5: "wgmma, fed by TMA",
    6: "producer and consumers",
    7: "persistent, clusters, TMA stores",
}
TORCH = "torch.matmul"
SIZES = {(4096, 4096, 4096): RUNGS, (8192, 8192, 8192): range(3, 8)}  # and the rungs that are timed there
TUNED = (4096, 14336, 4096), (4096, 4096, 14336), (512, 8192, 8192), (8192, 8192, 1024)
ODD = (1024,) * 3, (16, 4096, 4096), (200, 8192, 8192), (300, 14336, 4096), (3000, 5000, 7000), (5000,) * 3
SIZES |= dict.fromkeys(TUNED + ODD, (7,))
load = partial(operators.load_launcher, "matmul_ladder", HERE / "ladder.cu", *FLAGS)


def multiply(rung: int, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a b^T by one rung; RuntimeError if it does not run here, or not with these sizes."""
    c = a.new_full((len(a), len(b)), float("nan")) if out is None else out
    operators.launch(load(), rung, c, a, b, len(a), len(b), a.shape[1])
    return c


def relative_error(rung: int, a: Tensor, b: Tensor) -> float:
    """Error of a rung against float64, over that of torch.matmul."""
    right = a.double() @ b.double().t()
    ours, theirs = ((x.double() - right).norm() for x in (multiply(rung, a, b), a @ b.t()))
    return (ours / theirs).item() if theirs else float(ours > 0)


def measure_size(m: int, n: int, k: int) -> Iterator[dict]:
    sizes = (m, k), (n, k), (m, n)  # of a, b and the result
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    sets = lesson.rotate_sets(lambda: tuple(map(make, sizes)), 2 * (m * k + n * k + m * n))
    calls = {TORCH: [partial(torch.matmul, a, b.t(), out=c) for a, b, c in sets]}
    for rung in SIZES[m, n, k]:
        try:
            error = relative_error(rung, *sets[0][:2])
        except RuntimeError as reason:
            print(f"rung {rung}: {reason}")
            continue
        if not error <= 2:
            sys.exit(f"rung {rung} is wrong at {m} x {n} x {k}: {error} times the error of torch.matmul")
        calls[RUNGS[rung]] = [partial(multiply, rung, *each) for each in sets]
    found = clock.steady(calls, rounds=3 if RUNGS[1] in calls else 6, warm_s=0.03)
    for name, samples in found.items():
        us = statistics.median(samples)
        row = {"m": m, "n": n, "k": k, "rung": name, "us": us, "tflops": 2 * m * n * k / us * 1e-6}
        yield row | {"of_torch": statistics.median(t / x for t, x in zip(found[TORCH], samples, strict=True))}


def count() -> Iterator[dict]:
    """The rungs without wgmma, in the emulator: sectors and bank conflicts at 160 x 136 x 72."""
    launchers = kernels.load(HERE / "ladder.cu", f"-I{HERE.parent}", emulate=True)
    a, b = torch.randn(160, 72).bfloat16(), torch.randn(136, 72).bfloat16()

    def run(rung: int) -> Tensor:
        c = a.new_full((len(a), len(b)), float("nan"))
        launchers.launch("launch_ladder", rung, c, a, b, len(a), len(b), a.shape[1])
        return c

    rungs = {rung: name for rung, name in RUNGS.items() if rung < 5}
    yield from kernels.count_rungs(launchers, rungs, run, a.float() @ b.float().t(), 0.01)


def measure(once: int | None, _) -> Iterator[dict]:
    if once:
        a, b = (torch.randn(once, once, device="cuda").bfloat16() for _ in "ab")
        for rung in RUNGS:
            multiply(rung, a, b)
        torch.matmul(a, b.t())
        torch.cuda.synchronize()
        sys.exit()
    for size in SIZES:
        yield from measure_size(*size)


if __name__ == "__main__":
    parser = lesson.options(__doc__)
    parser.add_argument("--once", type=int, metavar="N", help="only run each rung once, at N x N x N; no results")
    kernels.add_option(parser)
    args = parser.parse_args()
    lesson.report_or_count(args, operators.has_toolkit, partial(measure, args.once), count)
