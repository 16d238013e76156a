"""`time.py --compiler all`: the three builds side by side.

A process can register an operator once only, so each build is measured by a time.py of its own.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from . import build as builds
from . import clock, report
from .build import BuildError
from .build.cache import ROOT
from .host_cost import HostCost
from .measure import Result
from .record import Record


def run(args: argparse.Namespace) -> int:
    """Build what is missing, time each build, print one table; returns the exit status."""
    built, status = {}, 0
    for compiler in builds.COMPILERS:
        try:
            built[compiler] = builds.build(compiler, rebuild=args.rebuild)
        except BuildError as error:
            status = report.fail(error)
    interrupted: list[bool] = []
    # The children get a Ctrl-C as well: they save what they have, and we put that together.
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
    parts = {}
    with tempfile.TemporaryDirectory() as folder:
        for compiler in built:
            file = Path(folder, f"{compiler}.json")
            if not interrupted:
                code = subprocess.run(_command(args, compiler, file), stdout=subprocess.DEVNULL).returncode
                status = max(status, code if code >= 0 else 128 - code)  # below 0: killed by a signal
            if file.exists():
                parts[compiler] = json.loads(file.read_text())
    signal.signal(signal.SIGINT, before)
    if not parts:
        return status

    record = Record(next(iter(parts.values()))["environment"] | {"command": report.command()})
    for compiler, part in parts.items():
        new = {} if built[compiler].cached else {"cached": False, "seconds": built[compiler].seconds}
        record.build += [row | (new if row["binding"] == "dispatcher" else {}) for row in part["build"]]
        record.results += [Result(**row) for row in part["results"]]
        record.host_cost += [HostCost(**row) for row in part["host_cost"]]
        record.warnings += [warning for warning in part["warnings"] if warning not in record.warnings]
        record.compare.append(_row(compiler, built[compiler], part))
    record.correct = status in (0, 130) and all(part["correct"] for part in parts.values())
    record.complete = not interrupted and len(parts) == len(builds.COMPILERS)

    peak = record.environment.get("peak_gb_per_s")
    print(report.describe(record.environment))
    print(report.table(record.results, peak))
    report.conclude(record.results, peak)
    print(table(record))
    record.finish(args)
    return status


def _command(args: argparse.Namespace, compiler: str, file: Path) -> list[str]:
    binding = "dispatcher" if compiler == "cmake" else args.binding
    command = [sys.executable, str(ROOT / "time.py"), "--compiler", compiler, "--binding", binding, "--host-cost"]
    command += ["--json", str(file), "--dtype", args.dtype, "--sizes", ",".join(map(str, args.sizes))]
    command += ["--offset", str(args.offset)]
    return command + (["--device", str(args.device)] if "device" in args else [])


def _row(compiler: str, build: builds.Build, part: dict) -> dict:
    best = clock.best(row["clock"] for row in part["results"])
    ours = [row for row in part["results"] if row["call"] == "torch_launch_add2" and row["clock"] == best]
    cost = [row["median_us"] for row in part["host_cost"] if row["call"] == "torch_launch_add2"]
    return {
        "compiler": compiler,
        "cold_s": build.cold_seconds,
        "warm_s": part["build"][0]["seconds"],
        "library_bytes": build.library.stat().st_size,
        "host_us": cost[0] if cost else None,
        f"{best}_clock_us": ours[0]["median_us"] if ours else None,
    }


def table(record: Record) -> str:
    """Seconds, sizes and costs of the builds; the time of a call is of the first size and dtype that was measured."""
    has_gpu = clock.best(row.clock for row in record.results) == "gpu"
    head = f"\n{'build':<8}{'cold build s':>14}{'warm load s':>13}{'library kB':>12}{'host us':>10}"
    text = [head + f"{'GPU us':>10}" * has_gpu]

    def figure(value: float | None, width: int, digits: int) -> str:
        return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"

    for row in record.compare:
        line = f"{row['compiler']:<8}{figure(row['cold_s'], 14, 2)}{figure(row['warm_s'], 13, 3)}"
        line += f"{row['library_bytes'] / 1e3:>12.0f}{figure(row['host_us'], 10, 2)}"
        text.append(line + (figure(row.get("gpu_clock_us"), 10, 2) if has_gpu else ""))
    text.append(
        "cold build: from nothing, when it was built last; warm load: of the finished library, torch being imported"
    )
    text.append("host: torch_launch_add2 until it returns, n = 1024")
    if has_gpu:
        first = record.results[0]
        text[-1] += f"; GPU: torch_launch_add2, {first.n} elements of {first.dtype}"
    return "\n".join(text)
