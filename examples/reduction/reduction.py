"""Compile row_sum.cu and softmax.cu of docs/11_reduction.md; on a GPU check them and time them against torch.

    python3 examples/reduction/reduction.py --json FILE

GPU time without launches, by CUDA graphs. Two tensors of 16384 x 4096 take turns: L2 cannot hold them.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transpose"))
from transpose import clock, launch, lesson, load

TORCH = {"row_sum": lambda x: x.sum(1), "softmax": lambda x: x.softmax(1)}
ROWS, WIDTH = 16384, 4096


def call(function: Callable, x: Tensor, out: Tensor) -> Tensor:
    launch(function, out, x, *x.shape)
    return out


def check(name: str, function: Callable) -> None:
    """Compare with float64: rows shorter and longer than a block, -inf, and a NaN wherever it stands."""
    for width in (1, 33, 5001):
        x = torch.randn(50, width, device="cuda")
        x[1, 0], x[2, -1], x[3, width // 2] = float("nan"), float("nan"), float("-inf")
        right = TORCH[name](x.double())
        scale = right if name == "softmax" else x.double().abs().sum(1)  # nothing cancels in a softmax
        found = call(function, x, torch.empty_like(right, dtype=torch.float32)).double()
        is_right = ((found - right).abs() <= 1e-5 * scale) | (found == right) | (found.isnan() & right.isnan())
        if not is_right.all():
            sys.exit(f"{name} is wrong for rows of {width}")
    print(f"{name} is right")


def measure(functions: dict[str, Callable], environment: dict) -> Iterator[dict]:
    environment["dtype"] = "float32"
    for name, function in functions.items():
        check(name, function)
        xs = [torch.randn(ROWS, WIDTH, device="cuda") for _ in range(2)]
        calls = {f"torch: {name}": [partial(TORCH[name], x) for x in xs]}
        calls[name] = [partial(call, function, x, TORCH[name](x)) for x in xs]
        once = xs[0].nbytes + TORCH[name](xs[0]).nbytes  # the floor: each element read once, each result written once
        for kernel, each in calls.items():
            us = clock.gpu(each * 8).median_us
            yield {"kernel": kernel, "us": us, "gb_per_s": once / us * 1e-3}


def main() -> None:
    args, here = lesson.options(__doc__).parse_args(), Path(__file__).parent
    libraries = {name: load(here / f"{name}.cu") for name in TORCH}
    if all(libraries.values()):
        functions = {name: getattr(library, f"launch_{name}") for name, library in libraries.items()}
        lesson.report(args, lambda: True, partial(measure, functions))


if __name__ == "__main__":
    main()
