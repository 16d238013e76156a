"""`time.py --compiler all`: every build, side by side.

A process can register an operator only once, so a time.py of its own measures each build.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from .. import cli
from ..build import COMPILERS, Build, BuildError, build, toolchain
from ..build.cache import ROOT
from . import clock, results, tables
from .calls import WITH_PYBIND11


def run(args: argparse.Namespace) -> int:
    """Build what is missing, time each build, print one table. Returns the exit status."""
    built, status = {}, 0
    compilers = list(COMPILERS)
    if ("device" in args and args.device.type == "cpu") or toolchain.lack_for_nvrtc():
        compilers.remove("nvrtc")  # it is for a GPU only
    for compiler in compilers:
        try:
            built[compiler] = build(compiler, rebuild=args.rebuild)
        except BuildError as error:
            status = cli.fail(error)
    parts, interrupted = {}, False
    with tempfile.TemporaryDirectory() as folder:
        for compiler in built:
            file = Path(folder, f"{compiler}.json")
            if not interrupted:
                code, interrupted = _run_child(_command(args, compiler, file))
                status = max(status, code if code >= 0 else 128 - code)  # below 0: killed by a signal
            if file.exists():
                parts[compiler] = json.loads(file.read_text())
    if not parts:
        return status

    content = next(iter(parts.values())) | {"build": [], "results": [], "host_cost": [], "warnings": [], "compare": []}
    content["environment"]["command"] = cli.command()
    for compiler, part in parts.items():
        new = {} if built[compiler].cached else {"cached": False, "seconds": built[compiler].seconds}
        content["build"] += [row | (new if row["binding"] == "dispatcher" else {}) for row in part["build"]]
        content["results"] += part["results"]
        content["host_cost"] += part["host_cost"]
        content["warnings"] += [warning for warning in part["warnings"] if warning not in content["warnings"]]
        content["compare"].append(_row(compiler, built[compiler], part))
    content["correct"] = all(part["correct"] for part in parts.values())
    content["complete"] = not interrupted and len(parts) == len(compilers)
    saved = results.save(args, content)

    cli.show(cli.describe(content["environment"]))
    if content["results"]:
        cli.show(tables.table(content["results"], content["environment"].get("peak_gb_per_s")))
        cli.show(tables.legend(content["results"]))
    cli.show(table(content))
    return max(status, saved)


def _run_child(command: list[str]) -> tuple[int, bool]:
    """Its exit status, and whether we were told to end meanwhile. A terminal sends Ctrl-C to the child as well, but
    `kill` sends SIGTERM only to us: so it is passed on. The child saves what it has, and ends."""
    received: list[int] = []

    def pass_on(number: int, _) -> None:
        received.append(number)
        if number == signal.SIGTERM:
            child.terminate()

    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
        child.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    return child.returncode, bool(received)


def _command(args: argparse.Namespace, compiler: str, file: Path) -> list[str]:
    binding = args.binding if compiler in WITH_PYBIND11 else "dispatcher"
    command = [sys.executable, str(ROOT / "time.py"), "--compiler", compiler, "--binding", binding, "--host-cost"]
    command += ["--json", str(file), "--dtype", args.dtype, "--offset", str(args.offset)]
    command += ["--sizes", ",".join(map(str, args.sizes))] if args.sizes else []
    command += ["--clocks"] if args.clocks else []
    return command + (["--device", str(args.device)] if "device" in args else [])


def _row(compiler: str, build: Build, part: dict) -> dict:
    best = clock.best(row["clock"] for row in part["results"])
    ours = [row for row in part["results"] if row["call"] == "torch_launch_add2" and row["clock"] == best]
    cost = [row["median_us"] for row in part["host_cost"] if row["call"] == "torch_launch_add2"]
    row = {"compiler": compiler, "cold_s": build.cold_seconds, "warm_s": part["build"][0]["seconds"]}
    row["library_bytes"] = build.library.stat().st_size if build.library else 0
    row["host_us"] = cost[0] if cost else None
    return row | {f"{best}_clock_us": ours[0]["median_us"] if ours else None}


def table(content: dict) -> str:
    """Seconds, sizes and costs of the builds; the GPU's time belongs to the first size and dtype."""
    has_gpu = any("gpu_clock_us" in row for row in content["compare"])
    head = f"\n{'build':<8}{'cold build s':>14}{'warm load s':>13}{'library kB':>12}{'host us':>10}"
    text = [head + f"{'GPU us':>10}" * has_gpu]
    for row in content["compare"]:
        cells = [row["cold_s"], row["warm_s"], row["library_bytes"] / 1e3, row["host_us"]]
        cells += [row.get("gpu_clock_us")] * has_gpu
        line = (f"{tables.figure(cell):>{width}}" for cell, width in zip(cells, (14, 13, 12, 10, 10), strict=False))
        text.append(f"{row['compiler']:<8}{''.join(line)}")
    text.append(
        "cold build: from nothing, when it was last built; warm load: of the finished library, torch being imported"
    )
    text.append("host: torch_launch_add2 until it returns, n = 1024")
    if has_gpu and content["results"]:
        first = content["results"][0]
        text[-1] += f"; GPU: torch_launch_add2, {tables.power(first['n'])} elements of {first['dtype']}"
    return "\n".join(text)
