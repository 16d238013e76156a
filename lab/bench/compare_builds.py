"""`time.py --compiler all`: every build, side by side.

A process can register an operator only once, so a time.py of its own measures each build.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from .. import cli
from ..build import COMPILERS, Build, Failure, build, toolchain
from ..build.cache import ROOT
from . import tables


def run(args: argparse.Namespace) -> int:
    """Build what is missing, time each build, print one table. Returns the exit status."""
    built, parts, status, interrupted = {}, {}, 0, False
    for compiler in COMPILERS:
        if compiler == "nvrtc" and (not cli.has_gpu(args) or toolchain.lack_for_nvrtc()):
            continue
        try:
            built[compiler] = build(compiler, rebuild=args.rebuild)
        except Failure as error:
            status = cli.fail(error)
    with tempfile.TemporaryDirectory() as folder:
        for compiler in built:
            file = Path(folder, f"{compiler}.json")
            # In a session of its own: a terminal's Ctrl-C reaches only us, and we pass it on.
            command = _command(args, compiler, file)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as child:
                try:
                    child.wait()
                except KeyboardInterrupt:  # the child saves what it has, and ends
                    interrupted = True
                    child.terminate()
                    child.wait()
            status = 130 if interrupted else max(status, abs(child.returncode))  # below 0: killed by a signal
            if file.exists():
                parts[compiler] = json.loads(file.read_text())
            if interrupted:
                break
    if not parts:
        return status

    content = dict(next(iter(parts.values())))  # with its environment
    for name in ("build", "results", "host_cost"):
        content[name] = [row for part in parts.values() for row in part[name]]
    content["compare"] = [_row(built[compiler], part) for compiler, part in parts.items()]
    content["environment"]["command"] = cli.command()
    content["correct"] = all(part["correct"] for part in parts.values())
    content["complete"] = status == 0

    print(cli.describe(content["environment"]))
    if content["results"]:
        print(tables.table(content["results"], content["environment"].get("peak_gb_per_s")))
        print(tables.legend(content["results"]))
    print(table(content["compare"]))
    return max(status, tables.save(args, content))


def _command(args: argparse.Namespace, compiler: str, file: Path) -> list[str]:
    command = [sys.executable, str(ROOT / "time.py"), "--compiler", compiler, "--binding", args.binding, "--host-cost"]
    command += ["--json", str(file), "--dtype", args.dtype]
    command += ["--sizes", ",".join(map(str, args.sizes))] if args.sizes else []
    command += ["--clocks"] if args.clocks else []
    return command + (["--device", str(args.device)] if "device" in args else [])


def _row(build: Build, part: dict) -> dict:
    """GPU time belongs to the first size and dtype."""
    row = {"compiler": build.compiler, "cold_s": build.cold_seconds, "warm_s": part["build"][0]["seconds"]}
    row["library_bytes"] = build.library.stat().st_size if build.library else 0
    times = [("host_us", part["host_cost"])]
    times += [("gpu_clock_us", [each for each in part["results"] if each["clock"] == "gpu"])]
    for name, rows in times:
        ours = [each["median_us"] for each in rows if each["call"] == "torch_launch_add2"]
        row |= {name: ours[0] if ours else None}
    return row


def table(rows: list[dict]) -> str:
    """Seconds, sizes and costs of the builds."""
    head = {"cold_s": "cold build s", "warm_s": "warm load s", "library_bytes": "library bytes", "host_us": "host us"}
    head |= {"gpu_clock_us": "GPU us"}
    text = ["\n" + "".join(f"{title:>14}" for title in ("build", *head.values()))]
    for row in rows:
        cells = [row["compiler"], *(tables.figure(row[name]) for name in head)]
        text.append("".join(f"{cell:>14}" for cell in cells))
    text.append("cold build: from nothing, when it was last built; warm load: of the library, after import torch")
    text.append("host: torch_launch_add2 until it returns, n = 1024; GPU: the same at the first size and dtype")
    return "\n".join(text)
