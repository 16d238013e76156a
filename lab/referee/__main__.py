"""Judge the operators that a file describes.

    python3 -m lab.referee spec.py                        # on a CPU
    python3 -m lab.referee spec.py --device cuda --json findings.json
    python3 -m lab.referee --list                         # the questions

Exit status: 0 if nothing is wrong, 1 if something is, 2 if the description is.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .judge import judge, run_trials
from .operator import Operator, SpecError, load
from .processes import sayer
from .registry import CHECKS
from .report import SHOWN, details, line, to_json


def parser() -> argparse.ArgumentParser:
    lines = __doc__.strip().splitlines()
    program = f"python3 -m {__package__}"
    epilog = f"Example: {program} examples/judge/faulty.py. docs/judge.md explains what such a file says. {lines[-1]}"
    parser = argparse.ArgumentParser(prog=program, description=lines[0], epilog=epilog)
    parser.add_argument("file", nargs="?", help="a Python file with global names that are Operators")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--operator", metavar="NAME", help="only this one of the file's operators")
    parser.add_argument("--check", action="append", metavar="NAME", help="only this check; may be given several times")
    parser.add_argument("--quick", action="store_true", help="leave out what takes a C++ compiler or Triton")
    parser.add_argument("--json", metavar="FILE", help="write all findings, with reproducers, to FILE")
    parser.add_argument("--list", action="store_true", help="print the checks and their questions")
    parser.add_argument("--events", type=int, help=argparse.SUPPRESS)  # one check, for a referee that cannot fork
    return parser


def show_progress(check, finding) -> None:
    """On a terminal: the check that runs now."""
    if sys.stderr.isatty():
        print(f"\r\033[K{check.name} ..." if finding is None else "\r\033[K", end="", file=sys.stderr, flush=True)


def check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.file is None:
        parser.error("name a file that describes an operator; README.md shows one")
    try:
        kind = torch.device(args.device).type
    except RuntimeError:
        parser.error(f"--device {args.device}: expected cpu, cuda or cuda:1")
    if kind == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {args.device} cannot be used: torch finds no GPU; try --device cpu")
    if args.json:
        path = Path(args.json).resolve()
        if not path.parent.is_dir():
            parser.error(f"--json {args.json}: no such folder")
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            parser.error(f"--json {args.json}: cannot be written")


def serve(args: argparse.Namespace) -> int:
    """Run one check in this process, and write events to a pipe."""
    say = sayer(args.events)
    try:
        (operator,) = load_all(args.file, args.operator)
        run_trials(operator, args.device, CHECKS[args.check[0]], say)
    except SpecError as error:
        say({"error": str(error)})
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser()
    args = options.parse_args(arguments)
    if args.list:
        print("\n".join(f"{check.name:<21} {check.question}" for check in CHECKS.values()))
        return 0
    # torch.cuda.is_available() then leaves CUDA alone, so that a fork may use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    check_options(options, args)
    try:
        if args.events is not None:
            return serve(args)
        reports = {}
        for operator in load_all(args.file, args.operator):
            print(f"{operator.title} on {args.device}, torch {torch.__version__}", flush=True)
            reports[operator] = judge(
                operator, args.device, checks=args.check, compile=not args.quick, progress=show_progress
            )
            print("\n".join(line(finding) for finding in reports[operator]))
            wrong = [finding for finding in reports[operator] if finding.is_wrong]
            print("".join(f"\n{details(finding)}\n" for finding in wrong))
            print(summary(reports[operator]) + "\n", flush=True)
    except SpecError as error:
        print(f"{options.prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{options.prog}: interrupted", file=sys.stderr)
        return 130
    if args.json:
        Path(args.json).write_text(to_json(reports, args.device))
    return int(any(finding.is_wrong for findings in reports.values() for finding in findings))


def load_all(file: str, title: str | None) -> list[Operator]:
    found = load(file, title)
    return found if isinstance(found, list) else [found]


def summary(findings) -> str:
    verdicts = dict.fromkeys(finding.verdict for finding in findings)
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in verdicts}
    return ", ".join(f"{count} {SHOWN.get(verdict, verdict)}" for verdict, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
