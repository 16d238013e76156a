"""Shared by bench.py, ladder.py and model.py: their options, and the files that hold their results."""

import argparse
import datetime
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from add_rms_norm import has_toolkit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def arguments(description: str, **defaults: str) -> argparse.Namespace:
    """--json, --plot, and lists of numbers."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        parser.add_argument(
            f"--{name}", default=default, type=lambda text: [int(n) for n in text.split(",")], metavar="N,N"
        )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (.svg, .png; needs matplotlib)")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="draw results of an earlier --json")
    return parser.parse_args()


def need_gpu() -> None:
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU's kernels, and torch sees no GPU here (add_rms_norm.py runs without one)")
    if not has_toolkit():
        sys.exit("the kernels have to be compiled, and no CUDA toolkit is found: set CUDA_HOME to its folder")


def environment() -> dict[str, str | float]:
    """Where and how figures were measured. The peak: two transfers a cycle of the memory's clock, each a bus wide."""
    found: dict[str, str | float] = {
        "name": "CPU",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "date": str(datetime.date.today()),
        "command": shlex.join(["python3", "examples/4_add_rms_norm/" + Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        found["name"] = gpu.name
        found["peak_gb_per_s"] = digits(2 * gpu.memory_clock_rate * gpu.memory_bus_width / 8 / 1e6)
    return found


def digits(x: float) -> float:
    return float(f"{x:.4g}")


def write_json(path: Path, content: dict) -> None:
    """One row a line, so that a change shows as a change."""
    rows = ",\n".join("  " + json.dumps(row) for row in content["results"])
    head = json.dumps({"environment": content["environment"]}, indent=1).rstrip("\n} ")
    path.write_text(f'{head}\n }},\n "results": [\n{rows}\n ]\n}}\n')


def finish(args: argparse.Namespace, content: dict, draw: Callable[[Path, dict], None]) -> None:
    if args.json:
        write_json(args.json, content)
    if args.plot:
        draw(args.plot, content)


def save(figure: "Figure", path: Path) -> None:
    """An SVG keeps its text as text, and no date: the same results give the same file."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "add_rms_norm"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
