"""Time int4_linear against bf16 F.linear, torch.compile, torch's own 4-bit kernel and bitsandbytes. Needs a GPU.

    python3 examples/5_int4_linear/bench.py --json FILE --plot FILE.svg

GPU time without launches, by CUDA graphs. Calls rotate among weights of four times the L2 cache, like a model's layers.
torch.compile is timed at the batches 1 and 16 only: it compiles for seconds.
"""

import argparse
import datetime
import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from int4_linear import GROUP, build, has_toolkit, int4_linear
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab.bench import clock  # the only part of the workbench that this file uses

SHAPES = [(4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192)]
NAMES = {"F.linear": "#777777", "torch.compile": "#d95f02", "tinygemm": "#7570b3", "bitsandbytes": "#e6ab02"}
OURS = "int4_linear"
Call = Callable[[Tensor], Tensor]


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, device="cuda", dtype=torch.uint8)


def scales(n: int, k: int) -> Tensor:
    return (torch.rand(k // GROUP, n, device="cuda") * 0.01 + 0.001).bfloat16()


def plain(n: int, k: int) -> Call:
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    return lambda x: F.linear(x, weight)


def unpack(x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    both = torch.stack((codes & 15, codes >> 4), -1).view(len(codes), -1, GROUP)
    return F.linear(x, ((both.to(x.dtype) - zero) * scale).view(len(codes), -1))


def compiled(n: int, k: int) -> Call:
    weight = random_bytes(n, k // 2), scales(n, k).t().reshape(n, -1, 1), random_bytes(n, k // GROUP, 1) & 15
    return lambda x: COMPILED(x, *weight)


COMPILED = torch.compile(unpack, fullgraph=True, dynamic=False)


def tinygemm(n: int, k: int) -> Call:
    packed = torch._convert_weight_to_int4pack(random_bytes(n, k // 2), 8)
    affine = torch.stack((scales(n, k), scales(n, k)), -1)
    return lambda x: torch._weight_int4pack_mm(x, packed, GROUP, affine)


def bitsandbytes(n: int, k: int) -> Call:
    import bitsandbytes as bnb

    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    packed, state = bnb.functional.quantize_4bit(weight, blocksize=GROUP, quant_type="nf4")
    return lambda x: bnb.matmul_4bit(x, packed.t(), state)


def ours(n: int, k: int) -> Call:
    packed = random_bytes(n // 16, k // 64, 32, 16).view(torch.int32)
    weight = packed, scales(n, k), random_bytes(k // GROUP, n) & 15
    return lambda x: int4_linear(x, *weight)


def inputs(n: int, k: int, batch: int) -> list[Tensor]:
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(2, math.ceil(4 * cache / (n * k / 2)))
    return [torch.randn(batch, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]


def time_calls(layers: list[Call], xs: list[Tensor]) -> float:
    """Microseconds of a call. Each has its own output; a replay of the graph has enough calls to hide its start."""
    kept: list = [None] * len(xs)

    def call(i: int) -> None:
        kept[i] = layers[i % len(layers)](xs[i])

    calls = [lambda i=i: call(i) for i in range(len(xs))]
    with torch.no_grad():
        return digits(clock.gpu(calls * math.ceil(16 / len(calls))).median_us)


def measure(n: int, k: int, batches: list[int], peak: float) -> list[dict]:
    """A row for each batch: the time of each contestant in microseconds, and the floor that memory sets."""
    rows = []
    for m in batches:
        size = n * k / 2 + 3 * n * k / GROUP + 2 * m * (n + k)
        rows.append({"n": n, "k": k, "batch": m, "floor_us": digits(size / peak * 1e-3)})
    makers = {"F.linear": plain, "torch.compile": compiled, "tinygemm": tinygemm, "bitsandbytes": bitsandbytes}
    for name, make in (makers | {OURS: ours}).items():
        torch.compiler.reset()  # it compiles anew for each shape, and only so often
        try:
            layers = [make(n, k) for _ in range(len(inputs(n, k, 1)))]
        except ImportError:
            continue
        for row in rows:
            if name != "torch.compile" or row["batch"] in (1, 16):
                row[name] = time_calls(layers, inputs(n, k, row["batch"]))
        del layers
        torch.cuda.empty_cache()
    for row in rows:
        row["of_best"] = digits(row[OURS] / min(row[name] for name in NAMES if name in row))
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


def plot(path: Path, content: dict) -> None:
    """Time over the batch, a panel for each shape."""
    from matplotlib.figure import Figure

    results = content["results"]
    shapes = list(dict.fromkeys((row["n"], row["k"]) for row in results))
    figure = Figure(figsize=(2.6 * len(shapes) + 0.4, 3.2), layout="constrained")
    for panel, shape in zip(figure.subplots(1, len(shapes), squeeze=False)[0], shapes, strict=True):
        rows = [row for row in results if (row["n"], row["k"]) == shape]
        for name, colour in (NAMES | {OURS: "#1b9e77", "floor_us": "black"}).items():
            points = [(row["batch"], row[name]) for row in rows if name in row]
            style = "--" if name == "floor_us" else "-"
            label = "memory's floor" if name == "floor_us" else name
            if points:
                panel.plot(*zip(*points, strict=True), style, marker=".", color=colour, label=label)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title("{} x {}".format(*shape), fontsize=9)
        panel.set_xlabel("rows of x", fontsize=9)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
    figure.axes[0].set_ylabel("microseconds", fontsize=9)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=6, fontsize=9)
    save(figure, path)


# Shared with ladder.py and model.py: options, and the files that hold results.
def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (.svg, .png; needs matplotlib)")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="draw results of an earlier --json")
    return parser


def prepare() -> dict:
    """Build the operator; return where figures are measured. The peak: two transfers per cycle of memory's clock."""
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU's kernels, and torch sees no GPU here (int4_linear.py runs without one)")
    if not has_toolkit():
        sys.exit("the kernels have to be compiled, and no CUDA toolkit is found: set CUDA_HOME to its folder")
    build()
    gpu = torch.cuda.get_device_properties(0)
    command = shlex.join(["python3", "examples/5_int4_linear/" + Path(sys.argv[0]).name, *sys.argv[1:]])
    peak = digits(2 * gpu.memory_clock_rate * gpu.memory_bus_width / 8 / 1e6)
    found = {"name": gpu.name, "torch": torch.__version__, "cuda": torch.version.cuda, "peak_gb_per_s": peak}
    return found | {"date": str(datetime.date.today()), "dtype": "bfloat16", "command": command}


def digits(x: float) -> float:
    return float(f"{x:.4g}")


def finish(args: argparse.Namespace, content: dict, draw: Callable[[Path, dict], None]) -> None:
    if args.json:  # one row per line, so that a change shows as a change
        rows = ",\n".join("  " + json.dumps(row) for row in content["results"])
        head = json.dumps({"environment": content["environment"]}, indent=1).rstrip("\n} ")
        args.json.write_text(f'{head}\n }},\n "results": [\n{rows}\n ]\n}}\n')
    if args.plot:
        draw(args.plot, content)


def save(figure, path: Path) -> None:
    """An SVG keeps its text as text, and no date: the same results give the same file."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "int4_linear"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--batches", default="1,2,4,8,16,32,64,256", metavar="N,N")
    args = parser.parse_args()
    if args.source:
        return finish(args, json.loads(args.source.read_text()), plot)
    where = prepare()
    batches = [int(m) for m in args.batches.split(",")]
    results = [row for n, k in SHAPES for row in measure(n, k, batches, where["peak_gb_per_s"])]
    finish(args, {"environment": where, "results": results}, plot)


if __name__ == "__main__":
    main()
