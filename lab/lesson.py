"""Shared by the lessons' programs that measure (bench.py, ladder.py): options, contestants, files, pictures."""

import argparse
import importlib.metadata
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from . import cli, files
from .bench import clock

# Other people's packages that take part in a bench.py where they are installed.
RIVALS = ("bitsandbytes", "flashinfer-python", "liger-kernel", "quack-kernels", "tokenspeed-humming")


def options(description: str, has_plot: bool = False) -> argparse.ArgumentParser:
    """A parser with --json and, for a program that draws, --plot and --from. report() expects its arguments."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", type=files.target, metavar="FILE", help="write the results")
    parser.set_defaults(plot=None, content=None)
    if has_plot:
        parser.add_argument("--plot", type=files.picture, metavar="FILE", help="draw them: .png, .pdf or .svg")
        parser.add_argument("--from", type=_earlier, metavar="FILE", dest="content", help="results of an earlier run")
    return parser


def _earlier(text: str) -> dict:
    try:
        content = json.loads(Path(text).read_text())
        if "/".join(Path(sys.argv[0]).resolve().parts[-2:]) in content["environment"]["command"] and content["results"]:
            return content
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read results from {text}: {error!r}") from None
    raise argparse.ArgumentTypeError(f"{text} holds no results of this program")


def rotate_sets(make: Callable, bytes_each: float, caches: int = 4) -> list:
    """Inputs that calls take in turn, so that they come from memory: as much as so many L2 caches, 2 to 256 sets."""
    count = math.ceil(caches * clock.cache_size(torch.device("cuda")) / bytes_each)
    return [make() for _ in range(min(max(2, count), 256))]


def compare(point: dict, timers: dict[str, Callable[[], float]], ours: str) -> dict:
    """A row: the point, the microseconds of each contestant, and ours over the best of the others. One of the
    others that raises a RuntimeError (a backend that refuses this size) is left out."""
    times = {}
    for name, timer in timers.items():
        try:
            times[name] = timer()
        except RuntimeError as error:
            if name == ours:
                raise
            print(f"{name} is left out: {str(error).splitlines()[0]}", flush=True)
        torch.cuda.empty_cache()
    return point | times | {"of_best": times[ours] / min(us for name, us in times.items() if name != ours)}


def report(args: argparse.Namespace, is_ready: Callable[[], bool], measure: Callable, plot: Callable | None = None):
    """Measure, unless --from has results; write the files that the options name.

    is_ready: builds the lesson, False without kernels. measure(environment) yields a dict for each row, which is shown;
    plot(figure, content) draws. Ends the program with one line if there is no GPU or no kernel. The file names the
    versions of other people's packages that take part.
    """
    if args.content:
        where, rows = args.content["environment"], args.content["results"]
    elif torch.cuda.is_available() and is_ready():
        installed = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
        rivals = {name: version for name, version in sorted(installed.items()) if name in RIVALS}
        where = cli.environment(torch.device("cuda")) | {"dtype": "bfloat16"} | ({"rivals": rivals} if rivals else {})
        rows = measure(where)
    else:
        sys.exit("this measures kernels: it needs a GPU that torch sees, and a CUDA toolkit (in $CUDA_HOME)")
    content = {"environment": where, "results": []}
    for row in rows:
        print(*(f"{x:.5g}" if isinstance(x, float) else x for pair in row.items() for x in pair), flush=True)
        content["results"].append(row)
        if args.json:  # now, so that a run that is cut short leaves what it has measured
            files.write(args.json, files.to_json(content))
    if args.plot:
        from .bench import plots  # now: it imports matplotlib

        plots.draw(args.plot, plot, content)
