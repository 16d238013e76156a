"""Measure what the pages show, on this machine. It takes some minutes.

    python3 docs/results/measure.py h200      # writes h200-float32.json, h200-float64.json, ... next to this file
    python3 docs/results/measure.py cpu       # the same for the machine's CPU
    python3 docs/results/figures.py           # puts them into the pages

`measure.py h200 float64 ways` measures only these two. Not here: compare.py, and the lessons in examples/.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch
from torch.utils import cpp_extension

RESULTS = Path(__file__).resolve().parent
sys.path.insert(0, str(RESULTS.parents[1]))

from lab import cli, files  # noqa: E402

SIZES = "2^10,2^12,2^14,2^16,2^18,2^20,1048577,2^21,2^22,2^24,16777217,2^26,2^28,2^30"
SWEEP = f"time.py --kernels --sizes {SIZES}"
GPU = {  # end of the file's name: the commands whose results it has
    "first-run": ["time.py --rebuild"],
    "float32": [f"{SWEEP} --sync-study"],
    "host-cost": ["time.py --sizes 2^10 --host-cost"],
    "float64": [f"{SWEEP} --dtype float64"],
    "float16": [f"{SWEEP} --dtype float16"],
    "bfloat16": [f"{SWEEP} --dtype bfloat16"],
    "clocks": ["time.py --clocks --dtype all --sizes 2^10,2^14,2^22,2^26"],
    "ways": ["examples/ways/ways.py", "examples/ways/ways.py --host-cost"],
    "training": [
        "train.py --check --epochs 1000",
        "train.py --check --epochs 1000 --cuda-graph",
        "train.py --check --epochs 1000 --compile",
        "train.py --model residual --check --epochs 20",
        "train.py --model residual --check --epochs 20 --compile",
        "train.py --model residual --check --epochs 10 --dtype bfloat16",
    ],
}
ON_A_CPU = "time.py --device cpu --dtype all --sizes " + ",".join(f"2^{k}" for k in range(4, 27, 2))
CPU = {"sweep": [ON_A_CPU], "headers": []}  # no command of the project: measure_headers()
STABLE = "torch/csrc/stable/library.h torch/csrc/stable/ops.h torch/csrc/stable/tensor.h"
ATEN = "torch/library.h ATen/core/Tensor.h ATen/ops/empty_like.h"
HEADERS = ("torch/extension.h", "torch/all.h", "torch/csrc/utils/pybind.h", ATEN, STABLE)


def run(command: str) -> dict:
    """Run one program of the project, show what it prints, and return the content of its JSON file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "FILE.json")
        words = [sys.executable, *shlex.split(command), "--json", str(file)]
        subprocess.run(words, cwd=RESULTS.parents[1], check=True)
        found = json.loads(file.read_text())
    found["environment"]["command"] = f"python3 {command} --json FILE.json"
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
    parts = CPU if args.machine == "cpu" else GPU
    for name in args.only or parts:
        found = [run(command) for command in parts[name]] or [measure_headers()]
        content = found if name in ("training", "ways") else found[0]
        files.write(RESULTS / f"{args.machine}-{name}.json", files.to_json(content))


if __name__ == "__main__":
    main()
