"""Shared by bench.py and ladder.py: their options, and the files that hold their results."""

import argparse
import datetime
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from add_rms_norm import has_toolkit


def arguments(description: str, **defaults: str) -> argparse.Namespace:
    """--json, --plot, and lists of numbers. Stops where a file cannot be written, or is of another program."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        parser.add_argument(
            f"--{name}", default=default, type=lambda text: [int(n) for n in text.split(",")], metavar="N,N"
        )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (.svg, .png; needs matplotlib)")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="draw results of an earlier --json")
    args = parser.parse_args()
    for path in (args.json, args.plot):
        if path and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
            parser.error(f"cannot write {path}")
    return args


def earlier(path: Path) -> dict:
    """The content of an earlier --json of the same program."""
    program = Path(sys.argv[0]).name
    try:
        content = json.loads(path.read_text())
        is_ours = program in content["environment"]["command"] and len(content["results"]) > 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"cannot read results from {path}: {type(error).__name__}: {error}")
    if not is_ours:
        sys.exit(f"{path} holds no results of {program}")
    return content


def need_gpu() -> None:
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU's kernels, and torch sees no GPU here (add_rms_norm.py runs without one)")
    if not has_toolkit():
        sys.exit("the kernels have to be compiled, and no CUDA toolkit is found: set CUDA_HOME to its folder")


def environment() -> dict[str, str | float]:
    """Where and how figures were measured. The peak: two transfers per cycle of the memory's clock, each a bus wide."""
    gpu = torch.cuda.get_device_properties(0)
    return {
        "name": gpu.name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "date": str(datetime.date.today()),
        "command": shlex.join(["python3", "examples/4_add_rms_norm/" + Path(sys.argv[0]).name, *sys.argv[1:]]),
        "peak_gb_per_s": digits(2 * gpu.memory_clock_rate * gpu.memory_bus_width / 8 / 1e6),
        "dtype": "bfloat16",
    }


def digits(x: float) -> float:
    return float(f"{x:.4g}")


def finish(args: argparse.Namespace, content: dict, draw: Callable) -> None:
    """Write what was asked for. One row per line, so that a change shows as a change."""
    if args.json and content["results"]:
        rows = ",\n".join("  " + json.dumps(row) for row in content["results"])
        head = json.dumps({"environment": content["environment"]}, indent=1).rstrip("\n} ")
        args.json.write_text(f'{head}\n }},\n "results": [\n{rows}\n ]\n}}\n')
    if args.plot:
        import matplotlib

        # An SVG keeps its text as text, and no date: the same results give the same file.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "add_rms_norm"}):
            draw(content).savefig(args.plot, metadata={"Date": None} if args.plot.suffix == ".svg" else None)
