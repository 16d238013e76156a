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
from add_rms_norm import build, has_toolkit


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def arguments(description: str, **defaults: str) -> argparse.Namespace:
    """--json, --plot, --from, and lists of numbers. Exits if a file cannot be written."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", default=default, type=numbers, metavar="N,N")
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


def digits(x: float) -> float:
    return float(f"{x:.4g}")


def environment() -> dict[str, str | float]:
    """The machine and the command. The peak counts two transfers per cycle of the memory's clock, each a bus wide."""
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


def new(measure: Callable[[float], list[dict]]) -> dict:
    """Build, measure, and return the content of a file. measure gets the memory's peak in GB/s."""
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU's kernels, and torch sees no GPU here (add_rms_norm.py runs without one)")
    if not has_toolkit():
        sys.exit("the kernels have to be compiled, and no CUDA toolkit is found: set CUDA_HOME to its folder")
    build()
    found = environment()
    return {"environment": found, "results": measure(found["peak_gb_per_s"])}


def report(
    args: argparse.Namespace, measure: Callable[[float], list[dict]], plot: Callable[[Path, dict], None]
) -> None:
    """Measure, or read what was measured before; write the files that the options name."""
    content = earlier(args.source) if args.source else new(measure)
    if args.json and content["results"]:
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    if args.plot:
        import matplotlib

        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "add_rms_norm"}):  # text stays text
            plot(args.plot, content)
