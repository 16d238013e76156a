"""Time gated_linear against torch.matmul + a compiled silu * mul, torch.compile, and CUTLASS. Needs a Hopper GPU.

    python3 examples/matmul/bench.py --json FILE

Each contestant runs for a while before it is timed, in turn with the others: a product of this size draws all the power
that the GPU may have, and the clock follows within milliseconds. CUTLASS takes part if `nvidia-cutlass` is installed.
"""

import argparse
import functools
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from gated_linear import HERE, build, gate, gated_linear, has_toolkit, interleave, reference
from torch.utils import cpp_extension

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import cli, files  # of the workbench only what names the machine and writes results

K, H, ROWS = 4096, 14336, (4096, 16384)
OURS = "gated_linear"


def environment() -> dict:
    if not torch.cuda.is_available() or not has_toolkit():
        sys.exit("this needs a GPU, and a CUDA toolkit ($CUDA_HOME) to compile kernels; gated_linear.py runs without")
    return cli.environment(torch.device("cuda")) | {"dtype": "bfloat16"}


def save(path: Path | None, where: dict, results: list[dict]) -> None:
    if path:
        files.write(path, files.to_json({"environment": where, "results": results}))


def steady_us(calls: dict[str, Sequence[Callable]], rounds: int = 5, warm_s: float = 0.03) -> dict[str, list[float]]:
    """Microseconds of a call, for each round. A contestant's calls are captured in a CUDA graph, which is replayed for
    warm_s, and then as long again between two events."""
    found: dict[str, list[float]] = {}
    graphs = {}
    for name, each in calls.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            each[0]()  # compiles
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for call in each:
                call()
        found[name] = []
    for _ in range(rounds):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin, replays = time.perf_counter(), 0
            while time.perf_counter() < begin + warm_s:
                graph.replay()
                torch.cuda.synchronize()
                replays += 1
            start.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            found[name].append(start.elapsed_time(end) * 1e3 / replays / len(calls[name]))
    return found


@functools.cache
def load_cutlass() -> Callable | None:
    """gated_linear by CUTLASS; None where its headers are not installed."""
    if not importlib.util.find_spec("cutlass_library"):
        return None
    source = Path(importlib.util.find_spec("cutlass_library").origin).parent / "source"
    begin = time.perf_counter()
    flags = ["-O3", "-std=c++17", "--expt-relaxed-constexpr", "-gencode=arch=compute_90a,code=sm_90a"]
    cpp_extension.load(
        "cutlass_gated",
        [str(HERE / "cutlass_gated.cu")],
        extra_cuda_cflags=[*flags, "-DTORCH_TARGET_VERSION=0x020a000000000000"],
        extra_include_paths=[str(source / "include"), str(source / "tools" / "util" / "include")],
        is_python_module=False,
    )
    print(f"CUTLASS: compiled and loaded in {time.perf_counter() - begin:.0f} s")
    return torch.ops.cutlass_gated.gated_linear


def measure(rows: int, autotune: bool) -> dict:
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    xs = [make(rows, K) for _ in range(2)]
    weights = [(make(H, K) / K**0.5, make(H, K) / K**0.5) for _ in xs]
    ws = [interleave(*pair) for pair in weights]
    pair = torch.compile(gate, fullgraph=True, dynamic=False)
    functions = {
        "torch.matmul": lambda x, w: x @ w.t(),  # without silu * mul: the floor of a product
        "torch.matmul + compiled silu * mul": lambda x, w: pair(x @ w.t()),
        OURS: gated_linear,
    }
    if autotune:
        mode = torch.compile(reference, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False)
        functions["torch.compile, max-autotune"] = mode
    calls = {name: [partial(f, x, w) for x, w in zip(xs, ws, strict=True)] for name, f in functions.items()}
    if cutlass := load_cutlass():
        calls["CUTLASS"] = [partial(cutlass, x, *pair) for x, pair in zip(xs, weights, strict=True)]
    right = reference(xs[0][:64].double(), ws[0].double())
    for name, each in list(calls.items())[1:]:
        error = ((each[0]()[:64] - right).norm() / right.norm()).item()
        assert error < 0.01, (name, error)
    found = steady_us(calls, warm_s=0.06)
    row = {"rows": rows, "k": K, "h": H} | {name: statistics.median(samples) for name, samples in found.items()}
    others = [name for name in list(calls)[1:] if name != OURS]
    per_round = zip(found[OURS], *(found[name] for name in others), strict=True)
    return row | {"of_best": statistics.median(ours / min(rest) for ours, *rest in per_round)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=files.target, metavar="FILE", help="write the results")
    parser.add_argument(
        "--autotune", action="store_true", help="also torch.compile with max-autotune, which takes long"
    )
    args = parser.parse_args()
    where, results = environment(), []
    if torch.cuda.get_device_capability()[0] != 9:
        sys.exit("this compares kernels for Hopper (compute capability 9.0); elsewhere gated_linear calls torch")
    build()
    for rows in ROWS:
        results.append(measure(rows, args.autotune))
        print("  ".join(f"{name} {value:.5g}" for name, value in results[-1].items()), flush=True)
    save(args.json, where, results)


if __name__ == "__main__":
    main()
