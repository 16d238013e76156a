"""Check and time the seven rungs of docs/15_matmul.md against torch.matmul. Rungs 5 to 7 need Hopper.

    python3 examples/matmul/ladder.py                             # 4096 and 8192 cubed, and other sizes
    python3 examples/matmul/ladder.py --json FILE
    python3 examples/matmul/ladder.py --once 4096                 # each rung once: for a profiler

Without a GPU, or with --emulate, rungs run in the emulator: their values, sectors and bank conflicts, no times.
GPU time without launches, by CUDA graphs, with a cold cache: calls rotate among matrices that L2 cannot hold.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from bench import clock, lesson
from common import ladders
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


def relative_error(c: Tensor, a: Tensor, b: Tensor) -> float:
    """Error of a product against float64, over that of torch.matmul."""
    right = a.double() @ b.double().t()
    ours, theirs = ((x.double() - right).norm() for x in (c, a @ b.t()))
    return (ours / theirs).item() if theirs else float(ours > 0)


def make_size(m: int, n: int, k: int, rungs: Iterable[int]) -> ladders.Size:
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    shapes = (m, k), (n, k), (m, n)  # of a, b and the result
    sets = lesson.rotate_sets(lambda: tuple(map(make, shapes)), 2 * (m * k + n * k + m * n))
    functions = {TORCH: lambda a, b, c: torch.matmul(a, b.t(), out=c)}
    functions |= {RUNGS[rung]: partial(multiply, rung) for rung in rungs}
    a, b, _ = sets[0]

    def time(names: Iterable[str]) -> dict[str, list[float]]:
        calls = {name: [partial(functions[name], *each) for each in sets] for name in names}
        return clock.steady(calls, rounds=3 if RUNGS[1] in calls else 6, warm_s=0.03)

    return ladders.Size(
        facts={"m": m, "n": n, "k": k},
        calls={name: lambda f=f: f(a, b, a.new_full((m, n), float("nan"))) for name, f in functions.items()},
        standard=TORCH,
        error=lambda c: relative_error(c, a, b),
        most=2,
        time=time,
        columns=lambda us: {"tflops": 2 * m * n * k / us * 1e-6},
    )


def emulated(launch: Callable) -> ladders.Emulated:
    """The rungs without wgmma, at 160 x 136 x 72."""
    a, b = torch.randn(160, 72).bfloat16(), torch.randn(136, 72).bfloat16()

    def call(rung: int) -> Tensor:
        c = a.new_full((len(a), len(b)), float("nan"))
        launch(rung, c, a, b, len(a), len(b), a.shape[1])
        return c

    rungs = {rung: name for rung, name in RUNGS.items() if rung < 5}
    return ladders.Emulated(rungs, call, a.float() @ b.float().t(), 0.01)


if __name__ == "__main__":
    ladders.run(
        __doc__,
        HERE / "ladder.cu",
        is_ready=operators.has_toolkit,
        sizes=lambda _: (make_size(*size, rungs) for size, rungs in SIZES.items()),
        once=lambda n: make_size(n, n, n, RUNGS),
        once_is="at N x N x N",
        emulated=emulated,
        ratio="of_torch",
    )
