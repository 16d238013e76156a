"""`time.py --compiler all`: every build, side by side. A time.py of its own builds and measures each, as a process can
register an operator only once."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from .. import cli
from ..build import COMPILERS, toolchain
from ..build.cache import ROOT
from . import calls


def run(args: argparse.Namespace) -> int:
    """Time each build that can be made here, print one table, write one file. Returns the exit status."""
    parts, status = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for compiler in COMPILERS:
            if compiler == "nvrtc" and (not cli.has_gpu(args) or toolchain.lack_for_nvrtc()):
                continue
            file = Path(folder, f"{compiler}.json")
            options = [*sys.argv[1:], "--compiler", compiler, "--json", file]  # the last one of a name counts
            # In a session of its own: a terminal's Ctrl-C reaches only us, and we pass it on.
            command = [sys.executable, ROOT / "time.py", *options]
            cli.note(f"timing {compiler} ...")
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as child:
                try:
                    child.wait()
                except KeyboardInterrupt:
                    status = 130
                    if child.poll() is None:  # it saves what it has; if it was still building, its compilers end, too
                        os.killpg(child.pid, signal.SIGTERM)
                    child.wait()
            status = max(status, abs(child.returncode))  # below 0: killed by a signal
            if file.exists():
                parts[compiler] = json.loads(file.read_text())
            if status == 130:
                break
    if not parts:
        return status
    content = next(iter(parts.values()))  # with its environment
    content |= {name: [row for part in parts.values() for row in part[name]] for name in ("build", "results")}
    content["host_cost"] = [{"compiler": name} | row for name, part in parts.items() for row in part["host_cost"]]
    content["environment"]["command"] = cli.command()
    content |= {"correct": all(part["correct"] for part in parts.values()), "complete": status == 0}

    print(cli.describe(content["environment"], [SimpleNamespace(**row) for row in content["build"]]))
    if content["results"]:
        print(calls.table(content["results"], content["environment"].get("peak_gb_per_s")))
        print(calls.legend(content["results"]))
    return max(status, cli.save(args, content, "lab.bench.plots:sweep" if content["results"] else ""))
