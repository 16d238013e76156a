"""Measure again what docs/results holds, on this machine: each file there names the command that made it.

    python3 docs/measure.py NAME                 # writes docs/results/NAME-float32.json, NAME-float64.json, ...
    python3 docs/measure.py NAME float64 ways    # only these two
    python3 docs/measure.py cpu                  # what was measured on a CPU
    python3 docs/figures.py                      # puts them into the pages

NAME: any for your GPU. Left out is what was made by hand, by several programs, or with files of your own.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT))

from lab import cli, files  # noqa: E402

COMMAND = re.compile(r"python3 [\w/]+\.py( [\w^,/-]+)* --json FILE(\.json)?")
STABLE = "torch/csrc/stable/library.h torch/csrc/stable/ops.h torch/csrc/stable/tensor.h"
ATEN = "torch/library.h ATen/core/Tensor.h ATen/ops/empty_like.h"
HEADERS = ("torch/extension.h", "torch/all.h", "torch/csrc/utils/pybind.h", ATEN, STABLE)


def find_commands(record: Path) -> list[str]:
    """The commands that made a file; none if they cannot be run as they stand."""
    content = json.loads(record.read_text())
    commands = [run["environment"]["command"] for run in (content if isinstance(content, list) else [content])]
    return commands if all(map(COMMAND.fullmatch, commands)) else []


def run(command: str) -> dict:
    """Run one program of the project, show what it prints, and return the content of its JSON file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "FILE.json")
        subprocess.run([sys.executable, *shlex.split(command)[1:-1], str(file)], cwd=ROOT, check=True)
        found = json.loads(file.read_text())
    found["environment"]["command"] = command
    for row in found.get("build", []):  # its name, not where it lay
        row["library"] = row["library"] and Path(row["library"]).name
    for row in found.get("training", []):  # its medians are shown, not its curves
        del row["us_per_step"], row["losses"], row["accuracies"]
    return found


def measure_headers() -> dict:
    """Seconds to compile a file that includes these headers of torch and nothing else, in one process each."""
    rows = []
    paths = [f"-I{path}" for path in (*cpp_extension.include_paths(), sysconfig.get_path("include"))]
    for headers in HEADERS:
        target = ["-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] if headers == STABLE else ["-std=c++20"]
        source = "".join(f"#include <{header}>\n" for header in headers.split())
        start = time.perf_counter()
        command = ["c++", "-O2", "-fPIC", *target, *paths, "-x", "c++", "-c", "-", "-o", os.devnull]
        subprocess.run(command, input=source, text=True, check=True)
        rows.append({"headers": headers, "seconds": time.perf_counter() - start})
    return {"environment": cli.environment(torch.device("cpu")), "headers": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", help="its name in the names of the files, such as h200, or cpu")
    parser.add_argument("only", nargs="*", help="only these parts (default: all)")
    args = parser.parse_args()
    for record in sorted(RESULTS.glob("cpu-*.json" if args.machine == "cpu" else "h200-*.json")):
        part = record.stem.partition("-")[2]
        commands = find_commands(record)
        if (args.only and part not in args.only) or not (commands or part == "headers"):
            continue
        found = [run(command) for command in commands] or [measure_headers()]
        content = found if part == "training" else found[0]
        files.write(RESULTS / f"{args.machine}-{part}.json", files.to_json(content))


if __name__ == "__main__":
    main()
