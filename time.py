"""Build add2, check it against torch, time it against torch.

    python3 time.py --compiler jit
    python3 time.py --compiler all --dtype all --sizes 2^10..2^28 --json times.json
    python3 time.py --sync-study                       # how to time a launch, and how not to

(This file has the name of a module of Python's own. That is safe for `time`, which is compiled into the interpreter
and found first, and for few others: a script called random.py or types.py would break every import after it.)
"""

import sys
import tempfile
from pathlib import Path

from lab import all_builds, arguments, build, health, host_cost, measure, report, sync_study, timeline
from lab.record import Record, build_row, write


def parse():
    parser = arguments.parser(__doc__.splitlines()[0], [*build.COMPILERS, "all"])
    parser.add_argument("--binding", choices=build.BINDINGS, default="dispatcher", help="pybind11: time it besides")
    parser.add_argument("--dtype", choices=[*measure.DTYPES, "all"], default="float32", help="of the elements")
    parser.add_argument("--sizes", type=arguments.sizes, default="1048576", help="elements: 1000,2^20 or 2^10..2^28")
    parser.add_argument("--offset", type=arguments.offset, default=0, help="time views that start at this element")
    parser.add_argument("--kernels", action="store_true", help="time each kernel of the lesson besides")
    also = parser.add_argument_group("measured besides")
    also.add_argument("--host-cost", action="store_true", help="what a call costs the host, at n = 1024")
    also.add_argument("--sync-study", action="store_true", help="the four ways to synchronize, and what each measures")
    also.add_argument("--timeline", type=arguments.picture, metavar="FILE.png", help="draw them (needs a GPU)")
    also.add_argument("--trace", type=arguments.writable, metavar="FILE.json", help="write them for ui.perfetto.dev")
    to = parser.add_argument_group("where it goes")
    to.add_argument("--plot", type=arguments.picture, metavar="FILE.png", help="draw GB/s and ratio over the sizes")
    to.add_argument("--json", type=arguments.writable, metavar="FILE", help="write all figures to FILE")
    to.add_argument("--csv", type=arguments.writable, metavar="FILE", help="the same as one table")
    to.add_argument("--against", type=arguments.record, metavar="FILE", help="compare with an earlier run's --json")
    args = parser.parse_args()
    if args.compiler == "cmake" and args.binding == "pybind11":
        parser.error("the cmake build has no Python in it, so no pybind11 binding; use --compiler jit or setup")
    if args.library and (args.compiler == "all" or args.binding == "pybind11"):
        parser.error("--library is of the dispatcher, and of one build: not with --compiler all or --binding pybind11")
    if args.compiler == "all" and (args.kernels or args.sync_study or args.timeline or args.trace):
        parser.error("--kernels, --sync-study, --timeline and --trace are of one build: not with --compiler all")
    if args.timeline and not arguments.has_gpu(args):
        parser.error("--timeline shows what a GPU does, and there is none here (--trace works on a CPU, too)")
    return args


def main() -> int:
    args = parse()
    if args.compiler == "all":
        return all_builds.run(args)

    # 1. Build, load, register.
    builds = [build.load(args.compiler, rebuild=args.rebuild, library=args.library)]
    if args.binding == "pybind11":
        builds.append(build.load(args.compiler, "pybind11", args.rebuild))
    device = arguments.choose_device(args, build.has_cuda_code(builds[0].library))
    if args.timeline and device.type != "cuda":
        return report.fail("--timeline shows what a GPU does, and add2 runs on the CPU here", status=2)
    record = Record(report.environment(device), [build_row(build) for build in builds])
    peak = record.environment.get("peak_gb_per_s")
    print(report.describe(record.environment), *map(report.describe_build, builds), sep="\n")

    # 2. Check against torch, 3. time against torch.
    kernels = measure.kernels(device, args.kernels, args.offset)
    calls = measure.calls(builds[0].library, device, builds[-1].module, kernels)
    dtypes = list(measure.DTYPES) if args.dtype == "all" else [args.dtype]
    wrong: list[str] = []
    try:
        with health.watched(device, record.warnings):
            for dtype, n in report.progress([(dtype, n) for dtype in dtypes for n in args.sizes]):
                if not measure.fits(n, measure.DTYPES[dtype], device):
                    report.note(f"{n} elements of {dtype} do not fit in the memory of {device}: left out")
                    continue
                sets = measure.buffers(n, measure.DTYPES[dtype], device, args.offset)
                wrong += [f"{call} for {n} elements of {dtype}" for call in measure.wrong(calls, sets[0])]
                if not wrong:
                    record.results += measure.measure(builds[0].compiler, calls, sets, args.offset)
                    report.show(report.table([row for row in record.results if (row.dtype, row.n) == (dtype, n)], peak))
        if not wrong:
            besides(args, record, calls, device, builds[-1].module)
    except KeyboardInterrupt:
        record.complete = False

    # 4. What it comes to.
    record.correct = not wrong
    report.conclude(record.results, peak)
    record.finish(args)
    if wrong:
        return report.fail(f"the result differs from torch's: {'; '.join(wrong)}")
    if not record.complete:
        return report.fail("interrupted; what was measured until then is above, and in the files", status=130)
    if not record.results:
        return report.fail("nothing was timed; give --sizes that fit in memory", status=2)
    return 0


def besides(args, record, calls, device, module) -> None:
    """What is measured if an option asks for it."""
    if args.host_cost:
        record.host_cost = host_cost.measure(device, module)
        print(host_cost.table(record.host_cost))
    if args.sync_study:
        dtype = measure.DTYPES["float32" if args.dtype == "all" else args.dtype]
        for n in sync_study.sizes(device):
            if measure.fits(n, dtype, device):
                record.sync_study += sync_study.run(calls, dtype, n, device)
    if args.timeline or args.trace:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "trace.json")
            timeline.record(calls[timeline.CALL], device, trace)
            record.timeline = timeline.spans(trace)
            if args.trace:
                write(args.trace, trace.read_bytes())


if __name__ == "__main__":
    sys.exit(report.run(main))
