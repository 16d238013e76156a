"""Check row_sum.cu and softmax.cu of docs/11_reduction.md; on a GPU time them against torch, elsewhere count sectors.

    python3 examples/reduction/reduction.py --json FILE
    python3 examples/reduction/reduction.py --emulate         # in the emulator, as where there is no GPU

GPU time without launches, by CUDA graphs. Two tensors of 16384 x 4096 take turns: L2 cannot hold them.
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import kernels, lesson
from lab.bench import clock

TORCH = {"row_sum": lambda x: x.sum(1), "softmax": lambda x: x.softmax(1)}
ROWS, WIDTH = 16384, 4096


def call(launchers: kernels.Launchers, name: str, x: Tensor, out: Tensor) -> Tensor:
    launchers.launch(f"launch_{name}", out, x, *x.shape)
    return out


def check(name: str, launchers: kernels.Launchers, rows: int = 50) -> None:
    """Compare with float64: rows shorter and longer than a block, -inf, and a NaN wherever it stands."""
    for width in (1, 33, 5001):
        x = torch.randn(rows, width, device=launchers.device)
        x[1, 0], x[2, -1], x[3, width // 2] = float("nan"), float("nan"), float("-inf")
        right = TORCH[name](x.double())
        scale = right if name == "softmax" else x.double().abs().sum(1)  # nothing cancels in a softmax
        found = call(launchers, name, x, torch.empty_like(right, dtype=torch.float32)).double()
        is_right = ((found - right).abs() <= 1e-5 * scale) | (found == right) | (found.isnan() & right.isnan())
        if not is_right.all():
            sys.exit(f"{name} is wrong for rows of {width}")
        if isinstance(launchers, kernels.InEmulator):
            kernels.expect_no_faults(launchers, f"{name} for rows of {width}")
    print(f"{name} is right")


def count(programs: dict[str, kernels.Launchers]) -> Iterator[dict]:
    """A row for each kernel, run in the emulator: the sectors that it loads and stores, and its bank conflicts."""
    found = {}
    for name, launchers in programs.items():
        check(name, launchers, rows=6)
        x = torch.randn(16, WIDTH)
        call(launchers, name, x, torch.empty_like(TORCH[name](x)))
        found[name] = launchers.counts()
        yield {"kernel": name} | found[name]
    print(f"16 rows of {WIDTH} elements of float32\n{kernels.traffic(found)}")


def measure(programs: dict[str, kernels.Launchers], environment: dict) -> Iterator[dict]:
    environment["dtype"] = "float32"
    for name, launchers in programs.items():
        check(name, launchers)
        xs = [torch.randn(ROWS, WIDTH, device="cuda") for _ in range(2)]
        calls = {f"torch: {name}": [partial(TORCH[name], x) for x in xs]}
        calls[name] = [partial(call, launchers, name, x, TORCH[name](x)) for x in xs]
        once = xs[0].nbytes + TORCH[name](xs[0]).nbytes  # the floor: each element read once, each result written once
        for kernel, each in calls.items():
            us = clock.gpu(each * 8).median_us
            yield {"kernel": kernel, "us": us, "gb_per_s": once / us * 1e-3}


def main() -> None:
    parser = lesson.options(__doc__)
    kernels.add_option(parser)
    args, here = parser.parse_args(), Path(__file__).parent
    programs = {name: kernels.load(here / f"{name}.cu", emulate=args.emulate) for name in TORCH}
    if all(isinstance(each, kernels.InEmulator) for each in programs.values()):
        lesson.save(args, count(programs))
    else:
        lesson.report(args, lambda: True, partial(measure, programs))


if __name__ == "__main__":
    main()
