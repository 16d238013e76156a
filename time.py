"""Build add2, check it against torch, time it against torch.

    python3 time.py --compiler jit
    python3 time.py --compiler all --dtype all --sizes 2^10..2^28 --json times.json

(This file has the name of a module of Python's own. That is safe for `time`, which is compiled into the interpreter
and found first, and for few others: a script called random.py or types.py would break every import after it.)
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from lab import arguments, compilers, host_cost, measure, report


def parse():
    parser = arguments.parser(__doc__.splitlines()[0], [*compilers.COMPILERS, "all"])
    parser.add_argument("--binding", choices=compilers.BINDINGS, default="dispatcher", help="pybind11: time it besides")
    parser.add_argument("--dtype", choices=[*measure.DTYPES, "all"], default="float32", help="of the elements")
    parser.add_argument("--sizes", type=arguments.sizes, default="1048576", help="elements: 1000,2^20 or 2^10..2^28")
    parser.add_argument("--host-cost", action="store_true", help="show besides what a call costs the host, at n = 1024")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    args = parser.parse_args()
    if args.compiler == "cmake" and args.binding == "pybind11":
        parser.error("the cmake build has no Python in it, so no pybind11 binding; use --compiler jit or setup")
    if args.compiler == "all" and args.host_cost:
        parser.error("--host-cost is of one build: use --compiler jit, setup or cmake")
    if args.json and not args.json.resolve().parent.is_dir():
        parser.error(f"--json {args.json}: there is no folder {args.json.resolve().parent}")
    return args


def main() -> int:
    args = parse()
    if args.compiler == "all":
        return each_in_a_process_of_its_own(args)

    # 1. Build, load, register.
    builds = [compilers.load(args.compiler)]
    if args.binding == "pybind11":
        builds.append(compilers.load(args.compiler, "pybind11"))
    device = arguments.choose_device(args, compilers.has_cuda_code(builds[0].library))
    environment = report.environment(device)
    print(report.describe(environment))
    for build in builds:
        print(report.describe_build(build))

    # 2. Check against torch, 3. time against torch.
    calls = measure.calls(builds[0].library, device, builds[-1].module)
    results: list[measure.Result] = []
    wrong: list[str] = []
    dtypes = list(measure.DTYPES) if args.dtype == "all" else [args.dtype]
    for dtype in (measure.DTYPES[name] for name in dtypes):
        for n in args.sizes:
            if not measure.fits(n, dtype, device):
                print(f"{n} elements of {dtype} do not fit in the memory of {device}: left out", file=sys.stderr)
                continue
            sets = measure.buffers(n, dtype, device)
            wrong += [f"{call} for {n} elements of {dtype}" for call in measure.wrong(calls, sets[0])]
            if not wrong:
                rows = measure.measure(args.compiler, calls, sets)
                print(report.table(rows))
                results += rows
    costs = []
    if args.host_cost and not wrong:
        costs = host_cost.measure(device, builds[-1].module)
        print(host_cost.table(costs))
    if args.json:
        rows = [report.build_row(build) for build in builds]
        content = report.to_json(environment, rows, results, not wrong)
        report.write_json(args.json, content | {"host_cost": [vars(cost) for cost in costs]})
    if wrong:
        return report.fail(f"the result differs from torch's: {'; '.join(wrong)}")
    if not results:
        return report.fail("nothing was timed; give --sizes that fit in memory", status=2)
    print(report.LEGEND)
    return 0


def each_in_a_process_of_its_own(args) -> int:
    """--compiler all: a process can register the operator once, so each build gets one; their figures in one table."""
    parts, status = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for compiler in compilers.COMPILERS:
            file = Path(folder, f"{compiler}.json")
            binding = "dispatcher" if compiler == "cmake" else args.binding
            command = [sys.executable, __file__, "--compiler", compiler, "--binding", binding, "--json", file]
            command += ["--dtype", args.dtype, "--sizes", ",".join(map(str, args.sizes))]
            command += ["--device", str(args.device)] if "device" in args else []
            code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
            status = max(status, code if code >= 0 else 128 - code)  # below 0: killed by a signal
            if file.exists():
                parts.append(json.loads(file.read_text()))
    if not parts:
        return status
    results = [measure.Result(**row) for part in parts for row in part["results"]]
    builds = [row for part in parts for row in part["build"]]
    print(report.describe(parts[0]["environment"]))
    for row in builds:
        print(report.describe_build(compilers.Build(**row)))
    print(report.table(results), report.LEGEND, sep="\n")
    if args.json:
        correct = status == 0 and all(part["correct"] for part in parts)
        content = report.to_json(parts[0]["environment"], builds, results, correct)
        report.write_json(args.json, content | {"host_cost": []})
    return status


if __name__ == "__main__":
    sys.exit(report.run(main))
