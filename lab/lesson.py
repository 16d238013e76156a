"""Shared by the lessons' programs that measure (bench.py, ladder.py): options, files, pictures, an earlier run."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from . import cli, files


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


def report(args: argparse.Namespace, is_ready: Callable[[], bool], measure: Callable, plot: Callable | None = None):
    """Measure, unless --from has results; write the files that the options name. Returns the content of --json.

    is_ready: builds the lesson, False without kernels. measure(environment) yields a dict for each row;
    plot(figure, content) draws. Ends the program with one line if there is no GPU or no kernel.
    """
    content = args.content
    if content is None:
        if not torch.cuda.is_available() or not is_ready():
            sys.exit("this measures kernels: it needs a GPU that torch sees, and a CUDA toolkit (in $CUDA_HOME)")
        where = cli.environment(torch.device("cuda")) | {"dtype": "bfloat16"}
        content = {"environment": where, "results": []}
        for row in measure(where):
            content["results"].append(row)
            if args.json:  # now, so that a run that is cut short leaves what it has measured
                files.write(args.json, files.to_json(content))
    elif args.json:
        files.write(args.json, files.to_json(content))
    if args.plot:
        import matplotlib
        from matplotlib.figure import Figure

        from .bench.plots import STYLE

        with matplotlib.rc_context(STYLE | {"svg.fonttype": "none", "svg.hashsalt": "lesson"}):  # text stays text
            figure = Figure(layout="constrained")
            plot(figure, content)
            files.draw(args.plot, figure, metadata={"Date": None} if args.plot.suffix == ".svg" else None)
    return content
