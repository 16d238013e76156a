"""Shared by the lessons' programs that measure (bench.py, ladder.py): options, contestants, files."""

import argparse
import importlib.metadata
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import cli, files
from .bench import clock

# Other people's packages that take part in a bench.py where they are installed.
RIVALS = ("bitsandbytes", "flashinfer-python", "liger-kernel", "quack-kernels", "tokenspeed-humming")


def options(description: str) -> argparse.ArgumentParser:
    """A parser with --json, as report() expects it."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", type=files.target, metavar="FILE", help="write the results")
    return parser


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


def report(args: argparse.Namespace, is_ready: Callable[[], bool], measure: Callable[[dict], Iterable[dict]]) -> None:
    """Measure, show the rows, and write the file that --json names.

    is_ready: builds the lesson, False without kernels. measure(environment) yields a dict for each row. Ends the
    program with one line if there is no GPU or no kernel. The file names the versions of other people's packages.
    """
    if not (torch.cuda.is_available() and is_ready()):
        sys.exit("this measures kernels: it needs a GPU that torch sees, and nvcc (ask `python3 -m lab.doctor`)")
    installed = [(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()]
    rivals = {name: version for name, version in sorted(installed) if name in RIVALS}
    where = cli.environment(torch.device("cuda")) | {"dtype": "bfloat16"} | ({"rivals": rivals} if rivals else {})
    save(args, measure(where), where, is_shown=True)


def report_or_count(
    args: argparse.Namespace,
    is_ready: Callable[[], bool],
    measure: Callable[[dict], Iterable[dict]],
    count: Callable[[], Iterable[dict]],
) -> None:
    """report(); with --emulate, or without a GPU, save what count() yields: it runs kernels in the emulator."""
    if args.emulate or not torch.cuda.is_available():
        save(args, count())
    else:
        report(args, is_ready, measure)


def save(
    args: argparse.Namespace, rows: Iterable[dict], environment: dict | None = None, is_shown: bool = False
) -> None:
    """Take all rows, and write them to the file that --json names; by default with the environment of a CPU."""
    where = environment if environment is not None else cli.environment(torch.device("cpu"))
    content: dict[str, Any] = {"environment": where, "results": []}
    for row in rows:
        if is_shown:
            print(*(f"{x:.5g}" if isinstance(x, float) else x for pair in row.items() for x in pair), flush=True)
        content["results"].append(row)
        if args.json:  # now, so that a run that is cut short leaves what it has measured
            files.write(args.json, files.to_json(content))
