"""Build add2, check it against torch, time it against torch.

    python3 time.py --compiler jit
    python3 time.py --compiler all --dtype all --sizes 2^10..2^28 --json times.json
    python3 time.py --sync-study                       # how to time a launch, and how not to

(Python finds its own module `time` before this file. A script called random.py would hide a module of its library.)
"""

import argparse
import itertools
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # which `python3 -P` leaves out

from lab import build, cli, files
from lab.bench import calls as bench
from lab.bench import host_cost, kernels, sync_study


def main() -> int:
    args = parse()
    content, status = measure_all_builds(args) if args.compiler == "all" else measure_build(args)
    if content["results"]:
        print(bench.legend(content["results"]))
    if args.json and (content["results"] or not content["correct"]):  # otherwise an earlier file is worth more
        files.write(args.json, files.to_json(content | {"complete": status == 0}))
    if args.plot and content["results"]:
        from lab.bench import plots  # it imports matplotlib

        plots.draw(args.plot, plots.sweep, content)
    return status


def measure_build(args: argparse.Namespace) -> tuple[dict, int]:
    """Returns the content of --json, and the exit status."""
    # 1. Build, load, register.
    built = build.load(args.compiler, rebuild=args.rebuild, library=args.library)
    device = cli.choose_device(args, built.library)
    environment = cli.environment(device)
    print(cli.describe(environment, [built]))
    if args.clocks and device.type == "cpu":
        print("--clocks: on a CPU there is only the clock of the host")
    calls = bench.calls()
    if args.kernels and device.type == "cpu":
        print(kernels.count(args.dtypes))
    elif args.kernels:
        calls |= kernels.kernels(device)

    # 2. Check against torch and time, size by size.
    content: dict[str, Any] = {"environment": environment, "results": [], "correct": True}
    status = 0
    content["build"] = [vars(built) | {"library": built.library.name}]
    try:
        for dtype, n in itertools.product(args.dtypes, args.sizes):
            sets = bench.buffers(n, bench.DTYPES[dtype], device)
            found = bench.measure(built.compiler, calls, sets, args.clocks)
            del sets  # before the next ones are made
            print(bench.table(found, environment.get("peak_gb_per_s")))
            content["results"] += found
        if args.host_cost:
            content["host_cost"] = host_cost.measure(calls, device)
            print(host_cost.table(content["host_cost"]))
        if args.sync_study:
            content["sync_study"] = sync_study.measure(calls, bench.DTYPES[args.dtypes[0]], device)
            print(sync_study.table(content["sync_study"], device))
    except KeyboardInterrupt:
        status = cli.fail("interrupted; what was measured until then is above, and in the files", 130)
    except bench.WrongResult as error:
        content["correct"], status = False, cli.fail(error)
    except RuntimeError as error:  # of torch: out of memory on a GPU or a CPU, or a kernel that failed
        reason = str(error).splitlines()[0]
        status = cli.fail(f"{reason} (what was measured before is kept; if memory is short, give smaller --sizes)")
    return content, status


def measure_all_builds(args: argparse.Namespace) -> tuple[dict, int]:
    """The same for each build that can be made here, in a process of its own: it can register an operator only once."""
    content: dict[str, Any] = {"environment": cli.environment(torch.device("cuda" if cli.has_gpu(args) else "cpu"))}
    content |= {"build": [], "results": [], "host_cost": [], "sync_study": [], "correct": True}
    signal.signal(signal.SIGINT, lambda *_: None)  # the children get it, too, and save what they have
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGINT))
    status = 0
    for compiler in build.COMPILERS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "times.json")
            # Of an option that stands twice the last one counts.
            child = subprocess.Popen([sys.executable, *sys.argv, "--compiler", compiler, "--json", str(file)])
            status = max(status, abs(child.wait()))
            found: dict[str, Any] = {"correct": True}
            if file.exists():
                found = json.loads(file.read_text())
        content["correct"] &= found["correct"]
        for part in ("build", "results", "host_cost", "sync_study"):
            content[part] += [{"compiler": compiler} | row for row in found.get(part, [])]
        if status in (130, signal.SIGINT):
            break
    print(bench.table(content["results"], content["environment"].get("peak_gb_per_s")))
    return content, status


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = cli.parser("Build add2, check it against torch, time it against torch.", [*build.COMPILERS, "all"])
    parser.add_argument("--dtype", choices=[*bench.DTYPES, "all"], default="float32", help="(default: float32)")
    parser.add_argument("--sizes", type=sizes, default="2^10,2^20,2^26", help="elements: 1000,2^20 or 2^10..2^28")
    parser.add_argument("--plot", type=files.picture, metavar="FILE", help="draw the results: .png, .pdf or .svg")
    parser.add_argument("--clocks", action="store_true", help="time by every clock: host, events, GPU, warm GPU")
    parser.add_argument(
        "--kernels", action="store_true", help="also time each kernel of the lesson; on a CPU, its memory traffic"
    )
    parser.add_argument("--host-cost", action="store_true", help="also the host's time for a call, at n = 1024")
    parser.add_argument("--sync-study", action="store_true", help="also four ways to synchronize, and their times")
    args = cli.parse(parser, argv)
    args.dtypes = list(bench.DTYPES) if args.dtype == "all" else [args.dtype]
    if args.compiler == "all" and args.library:
        parser.error("--library cannot be combined with --compiler all")
    cli.expect_different_files(parser, args, "library", "json", "plot")
    return args


def sizes(text: str) -> list[int]:
    """Numbers of elements: '1000', '1000,2^20', and by powers of two '2^10..2^20'."""
    found = []
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            n, end = size(first), size(last if dots else first)
            if not 1 <= n <= end <= 2**40:
                raise ValueError
            while n <= end:
                found.append(n)
                n *= 2
    except ValueError:
        what = "expected numbers of elements, 1 to 2^40: 1000,2^20 or 2^10..2^28"
        raise argparse.ArgumentTypeError(f"{text!r}: {what}") from None
    return found


def size(text: str) -> int:
    base, power, exponent = text.partition("^")
    if power and int(exponent) > 40:  # sizes() allows no more; Python would compute 9^999999999 for hours
        raise ValueError
    return int(base) ** int(exponent) if power else int(base)


if __name__ == "__main__":
    sys.exit(cli.run(main))
