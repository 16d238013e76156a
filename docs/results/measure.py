"""Measure everything that the pages show, on this machine. Three minutes on a GPU, ten on a CPU.

    python3 docs/results/measure.py h200      # writes h200.json, h200-float64.json, ... next to this file
    python3 docs/results/measure.py cpu       # the same for the machine's CPU
    python3 -m lab.figures                    # puts them into the pages

Each file keeps the command that made it. Several GPUs: see docs/several-gpus.md.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).resolve().parent
ROOT = RESULTS.parents[1]
sys.path.insert(0, str(ROOT))

from lab import files  # noqa: E402

SIZES = "2^10,2^12,2^14,2^16,2^18,2^20,1048577,2^21,2^22,2^24,16777217,2^26,2^28,2^30"
GPU = {
    "first-run": ["time.py --compiler jit --rebuild"],
    "": [f"time.py --dtype all --kernels --sizes {SIZES} --host-cost --sync-study"],
    "clocks": ["time.py --clocks --dtype all --sizes 2^10,2^14,2^22,2^26"],
    "training": [
        "train.py --check --epochs 1000",
        "train.py --check --epochs 1000 --cuda-graph",
        "train.py --check --epochs 1000 --compile",
        "train.py --model residual --check --epochs 20",
        "train.py --model residual --check --epochs 20 --compile",
        "train.py --model residual --check --epochs 10 --dtype bfloat16",
    ],
}
ON_A_CPU = "time.py --device cpu --binding pybind11 --dtype all --sizes " + ",".join(f"2^{k}" for k in range(4, 27, 2))
CPU = {
    "1-thread": [ON_A_CPU],
    "2-threads": [ON_A_CPU],
    "headers": ["docs/results/headers.py"],
}


def run(command: str, folder: Path, threads: int | None) -> dict:
    """Run one program of the project, show what it prints, and return what its --json has."""
    command += " --json FILE.json"
    words = shlex.split(command.replace("FILE", str(folder / "FILE")))
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=True)
    found = json.loads((folder / "FILE.json").read_text())
    found["environment"]["command"] = f"python3 {command}"
    for build in found.get("build", []):
        build["library"] = Path(build["library"]).name
    for row in found.get("training", []):  # only one curve is drawn
        del row["us_per_step"]
        if "residual --check --epochs 20" not in command or "compile" in command:
            del row["losses"], row["accuracies"]
    return found


def by_dtype(name: str, content: dict) -> dict[str, dict]:
    """Of a long run one file for float32, and one for each other dtype: no file grows past what a reader takes in."""
    rows = content.get("results", [])
    if name or len(rows) < 300:
        return {name: content}
    dtypes = dict.fromkeys(row["dtype"] for row in rows)
    parts = {dtype: [row for row in rows if row["dtype"] == dtype] for dtype in dtypes}
    others = {dtype: {"environment": content["environment"], "results": part} for dtype, part in parts.items()}
    del others["float32"]
    return {"": content | {"results": parts["float32"]}} | others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", help="its name in the names of the files, such as h200, or cpu")
    machine = parser.parse_args().machine
    with tempfile.TemporaryDirectory() as folder:
        for name, commands in (CPU if machine == "cpu" else GPU).items():
            threads = int(name[0]) if name[:1].isdigit() else None
            found = [run(command, Path(folder), threads) for command in commands]
            contents = {name: found} if name == "training" else by_dtype(name, found[0])
            for name, content in contents.items():
                path = RESULTS / f"{machine}{'-' * bool(name)}{name}.json"
                files.write(path, files.to_json(content))
                print(path)


if __name__ == "__main__":
    main()
