"""Build add2, check it against torch, time it against torch.

    python3 time.py --compiler jit
    python3 time.py --compiler all --dtype all --sizes 2^10..2^28 --json times.json
    python3 time.py --sync-study                       # how to time a launch, and how not to

(This file has the name of a module of Python's own. That is safe for `time`, which is compiled into the interpreter
and found first, and for few others: a script called random.py or types.py would break every import after it.)
"""

import argparse
import re
import signal
import sys

if __name__ == "__main__":
    from lab import cli

    cli.start()  # before torch is imported, which takes seconds

from lab import build, cli
from lab.bench import calls as bench

SIZES = (2**10, 2**20, 2**26)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = cli.parser("Build add2, check it against torch, time it against torch.", [*build.COMPILERS, "all"])
    bindings = ("dispatcher", "pybind11")
    parser.add_argument("--binding", choices=bindings, default="dispatcher", help="pybind11: time it, too")
    parser.add_argument("--dtype", choices=[*bench.DTYPES, "all"], default="float32", help="(default: float32)")
    parser.add_argument("--sizes", type=sizes, help="elements: 1000,2^20 or 2^10..2^28 (default: 2^10,2^20,2^26)")
    also = parser.add_argument_group("also measure")
    also.add_argument("--clocks", action="store_true", help="by every clock: host, events, GPU, warm GPU")
    also.add_argument("--kernels", action="store_true", help="each kernel of the lesson, and torch.neg")
    also.add_argument("--host-cost", action="store_true", help="the host's time for a call, at n = 1024")
    also.add_argument("--sync-study", action="store_true", help="four ways to synchronize, and what each measures")
    args = cli.parse(parser, argv)
    if args.kernels and args.compiler == "nvrtc":
        parser.error("--kernels calls the C functions of a library, and the nvrtc build has none; use --compiler jit")
    if args.library and args.compiler == "all":
        parser.error("--library cannot be combined with --compiler all")
    if args.compiler == "all" and (args.kernels or args.sync_study):
        parser.error("--kernels and --sync-study cannot be combined with --compiler all")
    return args


def main() -> int:
    args = parse()
    if args.compiler == "all":
        from lab.bench import compare_builds

        return compare_builds.run(args)

    # 1. Build, load, register.
    builds = [build.load(args.compiler, rebuild=args.rebuild, library=args.library)]
    if args.binding == "pybind11":
        builds.append(build.load("pybind11", args.rebuild))
    device = cli.choose_device(args, builds[0].library)
    content = {"environment": cli.environment(device), "build": [row(each) for each in builds]}
    content |= {name: [] for name in ("results", "host_cost", "sync_study")}
    print(cli.describe(content["environment"], builds))

    # 2. Check against torch, 3. time against torch.
    calls = bench.calls(builds[-1].module)
    if args.kernels:
        from lab.bench import kernels

        calls |= kernels.kernels(builds[0].library, device)
    problems: list[str] = []
    status = 0
    try:
        sweep(args, content, calls, device, problems)
        if not problems:
            study(args, content, calls, device)
    except KeyboardInterrupt:
        status = cli.fail("interrupted; what was measured until then is below, and in the files", 130)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on it takes a moment, and must not be lost
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    # 4. Conclude.
    content |= {"correct": not any("differs" in problem for problem in problems)}
    content |= {"complete": status == 0 and not problems}
    if content["results"]:
        print(bench.legend(content["results"]))
    if content["results"] or problems:  # else a file of an earlier run is worth more
        status = max(status, cli.save(args, content, "lab.bench.plots:sweep" if content["results"] else ""))
    for problem in problems:
        status = max(status, cli.fail(problem))
    if not content["results"] and not status:
        return cli.fail("nothing was timed; give --sizes that fit in memory", 2)
    return status


def sweep(args, content: dict, calls: dict, device, problems: list[str]) -> None:
    """Check and time every dtype at every size. After a wrong result nothing more is timed."""
    dtypes = list(bench.DTYPES) if args.dtype == "all" else [args.dtype]
    for dtype, n in ((dtype, n) for dtype in dtypes for n in args.sizes or SIZES):
        what = f"{bench.power(n)} elements of {dtype}"
        if not bench.fits(n, bench.DTYPES[dtype], device):
            if args.sizes:
                cli.note(f"{what} do not fit in the memory of {device}: left out")
            continue
        try:
            sets = bench.buffers(n, bench.DTYPES[dtype], device)
            if wrong := bench.wrong(calls, sets[0]):
                problems.append(f"the result of {', '.join(wrong)} differs from torch's for {what}")
                return
            rows = bench.measure(content["build"][0]["compiler"], calls, sets, args.clocks)
        except Exception as error:
            if not cli.is_out_of_memory(error):
                raise
            problems.append(f"out of memory with {what}; give smaller --sizes")
            continue
        finally:
            sets = []
        content["results"] += rows
        print(bench.table(rows, content["environment"].get("peak_gb_per_s")))


def study(args, content: dict, calls: dict, device) -> None:
    """Measure what only an option asks for."""
    if args.host_cost:
        from lab.bench import host_cost

        content["host_cost"] = host_cost.measure(calls, device)
    if args.sync_study:
        from lab.bench import sync_study

        dtype = bench.DTYPES["float32" if args.dtype == "all" else args.dtype]
        for each in sync_study.run(calls, dtype, device):
            content["sync_study"].append(each)


def row(build) -> dict:
    found = {name: getattr(build, name) for name in ("compiler", "binding", "library", "seconds", "cached")}
    return found | {"library": build.library and str(build.library)}


def sizes(text: str) -> list[int]:
    """Numbers of elements: '1000', '2^20', '1000,2^20', and by powers of two '2^10..2^20'."""
    found: list[int] = []
    for part in text.replace(" ", ",").split(","):
        if part:
            first, _, last = part.partition("..")
            value, end = size(first), size(last or first)
            if end < value:
                raise argparse.ArgumentTypeError(f"the range {part} is empty: {end} is less than {value}")
            while value <= end:
                found.append(value)
                value *= 2
    if not found:
        raise argparse.ArgumentTypeError("no size is given; examples: 1048576, 2^20, 2^10..2^28")
    return found


def size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15})(?:(?:\^|\*\*)([0-9]{1,2}))?", text.strip().replace("_", ""))
    value = int(match[1]) ** int(match[2] or 1) if match else 0
    if not 1 <= value <= 2**40:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a number of elements from 1 to 2^40; examples: 1048576, 2^20, 2^10..2^28"
        )
    return value


if __name__ == "__main__":
    sys.exit(cli.run(main))
