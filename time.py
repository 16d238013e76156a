"""Build add2, check it against torch, time it against torch.

    python3 time.py --compiler jit
    python3 time.py --compiler all --dtype all --sizes 2^10..2^28 --json times.json
    python3 time.py --sync-study                       # how to time a launch, and how not to

(This file has the name of a module of Python's own. That is safe for `time`, which is compiled into the interpreter
and found first, and for few others: a script called random.py or types.py would break every import after it.)
"""

import argparse
import itertools
import re
import sys

import torch

from lab import build, cli, files
from lab.bench import calls as bench
from lab.bench import compare_builds, host_cost, kernels, sync_study


def main() -> int:
    args = parse()
    content, status = measure_all_builds(args) if args.compiler == "all" else measure_build(args)
    if content["results"]:
        print(bench.legend(content["results"]))
    if args.json and (content["results"] or not content["correct"]):  # otherwise an earlier file is worth more
        files.write(args.json, files.to_json(content | {"complete": status == 0}))
    if args.plot and content["results"]:
        from lab.bench import plots  # imports matplotlib

        files.write(args.plot, files.to_picture(plots.sweep(content), args.plot))
    return status


def measure_build(args: argparse.Namespace) -> tuple[dict, int]:
    """Returns the content of --json, and the exit status."""
    # 1. Build, load, register.
    builds = [build.load(args.compiler, rebuild=args.rebuild, library=args.library)]
    if args.binding == "pybind11":
        builds.append(build.load("pybind11", args.rebuild))
    device = cli.choose_device(args, builds[0].library)
    environment = cli.environment(device)
    print(cli.describe(environment, builds))
    calls = bench.calls(builds[-1].module)
    if args.kernels:
        calls |= kernels.kernels(builds[0].library, device)

    # 2. Check against torch and time, size by size.
    rows, host_rows, sync_rows, is_correct, status = [], [], [], True, 0
    try:
        for dtype, n in itertools.product(args.dtypes, args.sizes):
            found = measure(builds[0].compiler, calls, n, bench.DTYPES[dtype], device, args.clocks)
            print(bench.table(found, environment.get("peak_gb_per_s")))
            rows += found
        if args.host_cost:
            host_rows = host_cost.measure(calls, device)
            print(host_cost.table(host_rows))
        if args.sync_study:
            sync_rows = sync_study.measure(calls, bench.DTYPES[args.dtypes[0]], device)
            print(sync_study.table(sync_rows, device))
    except KeyboardInterrupt:
        status = cli.fail("interrupted; what was measured until then is above, and in the files", 130)
    except bench.WrongResult as error:
        is_correct, status = False, cli.fail(error)
    except (MemoryError, torch.OutOfMemoryError) as error:
        status = cli.fail(f"out of memory; give smaller --sizes: {error}")

    shown = [{name: value for name, value in vars(each).items() if name != "module"} for each in builds]
    content = {"environment": environment, "build": shown, "results": rows, "correct": is_correct}
    return content | {"host_cost": host_rows, "sync_study": sync_rows}, status


def measure(compiler: str, calls: dict, n: int, dtype: torch.dtype, device: torch.device, every_clock: bool) -> list:
    """The rows of one size. bench.WrongResult if a result differs from torch's."""
    sets = bench.buffers(n, dtype, device)
    bench.check(calls, sets[0])
    return bench.measure(compiler, calls, sets, every_clock)


def measure_all_builds(args: argparse.Namespace) -> tuple[dict, int]:
    """The content of --json for all builds, and the exit status."""
    contents, status = compare_builds.measure(cli.has_gpu(args))
    content = {"build": [], "results": [], "host_cost": [], "sync_study": []}
    for each in contents:
        for name, rows in content.items():
            rows += [{"compiler": each["build"][0]["compiler"]} | row for row in each[name]]
    content["environment"] = cli.environment(torch.device("cuda" if cli.has_gpu(args) else "cpu"))
    content["correct"] = all(each["correct"] for each in contents)
    print(cli.describe(content["environment"], [build.Build(**row) for row in content["build"]]))
    print(bench.table(content["results"], content["environment"].get("peak_gb_per_s")))
    return content, status


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = cli.parser("Build add2, check it against torch, time it against torch.", [*build.COMPILERS, "all"])
    parser.add_argument(
        "--binding", choices=["dispatcher", "pybind11"], default="dispatcher", help="time this one, too"
    )
    parser.add_argument("--dtype", choices=[*bench.DTYPES, "all"], default="float32", help="(default: float32)")
    parser.add_argument("--sizes", type=sizes, default="2^10,2^20,2^26", help="elements: 1000,2^20 or 2^10..2^28")
    also = parser.add_argument_group("also measure")
    also.add_argument("--clocks", action="store_true", help="by every clock: host, events, GPU, warm GPU")
    also.add_argument("--kernels", action="store_true", help="each kernel of the lesson, and torch.neg")
    also.add_argument("--host-cost", action="store_true", help="the host's time for a call, at n = 1024")
    also.add_argument("--sync-study", action="store_true", help="four ways to synchronize, and what each measures")
    args = cli.parse(parser, argv)
    args.dtypes = list(bench.DTYPES) if args.dtype == "all" else [args.dtype]
    if args.compiler == "nvrtc" and args.kernels:
        parser.error("--kernels calls the C functions of a library, and the nvrtc build has none; use --compiler jit")
    if args.compiler == "all" and (args.kernels or args.library):
        parser.error("--kernels and --library cannot be combined with --compiler all")
    return args


def sizes(text: str) -> list[int]:
    """Numbers of elements: '1000', '1000,2^20', and by powers of two '2^10..2^20'."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        n, end = size(first), size(last or first)
        while n <= end:
            found.append(n)
            n *= 2
    if not found:
        raise argparse.ArgumentTypeError(f"the range {text} is empty; a range is 2^10..2^28")
    return found


def size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15})(?:\^([0-9]{1,2}))?", text.strip())
    n = int(match[1]) ** int(match[2] or 1) if match else 0
    if not 1 <= n <= 2**40:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of elements from 1 to 2^40, such as 1000 or 2^20")
    return n


if __name__ == "__main__":
    sys.exit(cli.run(main))
