"""Check and time the seven rungs of docs/11_matmul.md against torch.matmul. Needs a GPU; rungs 5 to 7 need Hopper.

    python3 examples/matmul/ladder.py                             # 4096 and 8192 cubed, and four other sizes
    python3 examples/matmul/ladder.py --json FILE --plot FILE.svg
    python3 examples/matmul/ladder.py --once 4096                 # each rung once: for a profiler

GPU time without launches, by CUDA graphs, with a cold cache: calls rotate among matrices that L2 cannot hold.
"""

import argparse
import ctypes
import functools
import json
import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from bench import environment, files, save, steady_us
from gated_linear import ARCHITECTURES, HERE
from torch import Tensor
from torch.utils import cpp_extension

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
SIZES = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (4096, 4096, 14336), (512, 8192, 8192)]
SIZES += [(8192, 8192, 1024)]


@functools.cache
def compile_rungs() -> ctypes.CDLL:
    flags = ["-O3", "-std=c++17", *ARCHITECTURES]
    path = cpp_extension.load("ladder", [str(HERE / "ladder.cu")], extra_cuda_cflags=flags, is_python_module=False)
    library = ctypes.CDLL(path)
    library.launch_rung.restype = ctypes.c_char_p
    return library


def multiply(library: ctypes.CDLL, rung: int, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a b^T by one rung; RuntimeError if it does not run here, or not with these sizes."""
    c = a.new_full((len(a), len(b)), float("nan")) if out is None else out
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (c, a, b)]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if error := library.launch_rung(rung, *pointers, len(a), len(b), a.shape[1], -1, stream):
        raise RuntimeError(f"rung {rung}: {error.decode()}")
    return c


def relative_error(library: ctypes.CDLL, rung: int, a: Tensor, b: Tensor) -> float:
    """Error of a rung against float64, over that of torch.matmul."""
    right = a.double() @ b.double().t()
    ours, theirs = ((x.double() - right).norm() for x in (multiply(library, rung, a, b), a @ b.t()))
    return (ours / theirs).item() if theirs else float(ours > 0)


def measure_size(library: ctypes.CDLL, m: int, n: int, k: int, rungs: list[int]) -> list[dict]:
    count = max(2, math.ceil(4 * torch.cuda.get_device_properties(0).L2_cache_size / 2 / (m * k + n * k + m * n)))
    sets = [tuple(torch.randn(x, k, device="cuda").bfloat16() for x in (m, n)) for _ in range(count)]
    outs = [a.new_empty(m, n) for a, _ in sets]
    calls: dict[str, list[Callable]] = {
        TORCH: [partial(torch.matmul, a, b.t(), out=c) for (a, b), c in zip(sets, outs, strict=True)]
    }
    for rung in rungs:
        try:
            error = relative_error(library, rung, *sets[0])
        except RuntimeError as reason:
            print(reason)
            continue
        if not error <= 2:
            raise SystemExit(f"rung {rung} is wrong at {m} x {n} x {k}: {error} times the error of torch.matmul")
        calls[RUNGS[rung]] = [partial(multiply, library, rung, a, b, c) for (a, b), c in zip(sets, outs, strict=True)]
    found = steady_us(calls, rounds=3 if 1 in rungs else 6)
    rows = []
    for name, samples in found.items():
        us = statistics.median(samples)
        row = {"m": m, "n": n, "k": k, "rung": name, "us": us, "tflops": 2 * m * n * k / us * 1e-6}
        row["of_torch"] = statistics.median(t / x for t, x in zip(found[TORCH], samples, strict=True))
        rows.append(row)
        print(f"{m:>6} {n:>6} {k:>6}  {name:<36}{row['tflops']:>8.1f} TFLOP/s  {row['of_torch']:>6.3f}", flush=True)
    return rows


def plot(path: Path, results: list[dict]) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ladder", "font.size": 9})
    figure = Figure(figsize=(9, 3), layout="constrained")
    for panel, size in zip(figure.subplots(1, 2, sharey=True), (4096, 8192), strict=True):
        rows = [row for row in results if (row["m"], row["n"], row["k"]) == (size,) * 3]
        names = [*RUNGS.values(), TORCH]
        tflops = {row["rung"]: row["tflops"] for row in rows}
        colours = ["#777777" if name == TORCH else "#1b9e77" for name in names]
        bars = panel.barh(range(len(names)), [tflops.get(name, 0) for name in names], color=colours)
        panel.bar_label(bars, [f"{tflops[name]:.3g}" if name in tflops else "" for name in names], padding=2)
        panel.set_yticks(range(len(names)), names)
        panel.set(title=f"{size} x {size} x {size}", xlabel="TFLOP/s", xlim=(0, 1.15 * max(tflops.values())))
    panel.invert_yaxis()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=files.target, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=files.target, metavar="FILE", help="draw them (.svg, .png; needs matplotlib)")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="earlier", help="draw results of an earlier --json")
    parser.add_argument("--once", type=int, metavar="N", help="only run each rung once, at N x N x N")
    args = parser.parse_args()
    if args.earlier:
        return plot(args.plot, json.loads(args.earlier.read_text())["results"])
    where, library = environment(), compile_rungs()
    if args.once:
        a, b = (torch.randn(args.once, args.once, device="cuda").bfloat16() for _ in "ab")
        for rung in RUNGS:
            multiply(library, rung, a, b)
        torch.matmul(a, b.t())
        torch.cuda.synchronize()
        return
    results = []
    for i, size in enumerate(SIZES):
        results += measure_size(library, *size, [3, 4, 5, 6, 7] if i == 1 else list(RUNGS) if i == 0 else [7])
    save(args.json, where, results)
    if args.plot:
        plot(args.plot, results)


if __name__ == "__main__":
    main()
