"""Check the kernels of docs/10_transpose.md; on a GPU time them next to torch and a copy, elsewhere count sectors.

    python3 examples/transpose/transpose.py --json FILE
    python3 examples/transpose/transpose.py --once            # each kernel once: for a profiler
    python3 examples/transpose/transpose.py --emulate         # in the emulator, as where there is no GPU

GPU time without launches, by CUDA graphs. Two matrices of 8192 x 8192 take turns: L2 cannot hold them.
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import kernels, lesson  # of the workbench only the options, the clock, and what runs a .cu file
from lab.bench import clock

RUNGS = {
    1: "one thread per element",
    2: "through a tile in shared memory",
    3: "rows of the tile 4 bytes longer",
    4: "four elements per thread",
    5: "larger tiles, whole words",
}
COPY, TORCH = "y.copy_(x)", "x.t().contiguous()"
DTYPES = (torch.float32, torch.bfloat16)
SIZES = [(8192, 8192), (1, 1), (1, 1000), (33, 31), (65, 127), (1000, 778), (0, 5), (3 << 20, 3), (3, 3 << 20)]
SMALL_SIZES = [(1, 1), (1, 100), (33, 31), (65, 127), (130, 258), (0, 5)]  # for the emulator


def transpose(launchers: kernels.Launchers, rung: int, x: Tensor, y: Tensor) -> Tensor:
    """Write x transposed to y, by one rung. Both: contiguous, on the launchers' device, elements of 4 or of 2 bytes."""
    launchers.launch("launch_4_bytes" if x.element_size() == 4 else "launch_2_bytes", rung, y, x, *x.shape)
    return y


def check(launchers: kernels.Launchers, sizes: list[tuple[int, int]]) -> None:
    for dtype in DTYPES:
        for height, width in sizes:
            x = torch.randn(height, width).to(launchers.device, dtype)
            for rung in RUNGS:
                if not torch.equal(transpose(launchers, rung, x, x.new_zeros(width, height)), x.t()):
                    sys.exit(f"rung {rung} is wrong: {height} x {width} elements of {dtype}")
                if isinstance(launchers, kernels.InEmulator):
                    kernels.expect_no_faults(launchers, f"rung {rung}, {height} x {width} elements of {dtype}")
    print(f"all rungs are right, at {len(sizes)} sizes, in float32 and bfloat16")


def count(launchers: kernels.InEmulator, height: int = 512, width: int = 256) -> Iterator[dict]:
    """A row for each kernel, run in the emulator: the sectors that it loads and stores, and its bank conflicts."""
    check(launchers, SMALL_SIZES)
    for dtype in DTYPES:
        x = torch.randn(height, width).to(dtype)
        rows = {}
        for rung, name in RUNGS.items():
            transpose(launchers, rung, x, x.new_empty(width, height))
            rows[f"{rung}. {name}"] = launchers.counts()
            yield {"dtype": str(dtype).removeprefix("torch."), "kernel": name} | launchers.counts()
        print(f"{height} x {width} elements of {dtype}\n{kernels.traffic(rows)}", flush=True)


def measure(launchers: kernels.OnGpu, environment: dict) -> Iterator[dict]:
    """A row for each kernel: microseconds, bytes read and written per second, speed over that of torch and a copy."""
    check(launchers, SIZES)
    environment["dtype"] = "float32, bfloat16"
    for dtype in DTYPES:
        xs = [torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2)]
        sets = [(x, torch.empty_like(x)) for x in xs]
        calls = {COPY: [partial(y.copy_, x) for x, y in sets], TORCH: [lambda x=x: x.t().contiguous() for x in xs]}
        calls |= {name: [partial(transpose, launchers, rung, *each) for each in sets] for rung, name in RUNGS.items()}
        found = {name: clock.gpu(each * 8).median_us for name, each in calls.items()}
        for name, us in found.items():
            row = {"dtype": str(dtype).removeprefix("torch."), "kernel": name, "us": us}
            row |= {
                "gb_per_s": 2 * xs[0].nbytes / us * 1e-3,
                "of_torch": found[TORCH] / us,
                "of_copy": found[COPY] / us,
            }
            yield row


def main() -> None:
    parser = lesson.options(__doc__)
    parser.add_argument("--once", action="store_true", help="only run each kernel once, at 8192 x 8192; no results")
    kernels.add_option(parser)
    args = parser.parse_args()
    launchers = kernels.load(Path(__file__).with_name("transpose.cu"), emulate=args.emulate)
    if isinstance(launchers, kernels.InEmulator):
        lesson.save(args, count(launchers))
    elif args.once:
        for dtype in DTYPES:
            x, y = torch.ones(2, 8192, 8192, device="cuda", dtype=dtype)
            for rung in RUNGS:
                transpose(launchers, rung, x, y)
        torch.cuda.synchronize()
    else:
        lesson.report(args, lambda: True, partial(measure, launchers))


if __name__ == "__main__":
    main()
