"""Time each way to make an operator: from nothing to the first result, and then each call.

    python3 examples/ways/ways.py                      # all that can run here
    python3 examples/ways/ways.py --way nvrtc --way triton_op --json ways.json
    python3 examples/ways/ways.py --host-cost          # each layer between Python and a C++ function (layers.py)

Each way has a process of its own and an empty cache. docs/19_ways.md says which way to take when.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from lab import build, cli, files  # noqa: E402
from lab.bench import calls, clock, host_cost  # noqa: E402

FILES = {
    "torch.compile": "compiled",
    "triton_op": "triton_add",
    "nvrtc": "nvrtc_add",
    "tvm-ffi": "tvm_add",
    "CuTe DSL": "cute_add",
}
WAYS = ("torch.add", *FILES, *build.COMPILERS)
ON_A_GPU = ("triton_op", "nvrtc", "tvm-ffi", "CuTe DSL")
OPTIONAL = ("nvrtc", "tvm-ffi", "CuTe DSL")  # their packages may be missing
LAYERS = "host cost"  # layers.py in a process of its own
SMALL, LARGE = 1024, 2**26
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def prepare(way: str):
    """Make the operator from nothing: a function of a and b."""
    if way == "torch.add":
        return torch.add
    if way in FILES:
        return importlib.import_module(FILES[way]).add
    build.load(way, rebuild=way in ("setup", "cmake"))  # these leave their libraries in the project, not in a cache
    import add2

    return add2.add2


def measure(way: str) -> dict:
    """Seconds to the first result, with torch imported and a GPU awake; then the figures of a call."""
    a, b = torch.randn(2, SMALL, device=DEVICE)
    expected = a + b
    clock.synchronize(DEVICE)
    start = time.perf_counter()
    add = prepare(way)
    result = add(a, b)
    clock.synchronize(DEVICE)
    seconds = time.perf_counter() - start
    if not torch.equal(result, expected):
        raise SystemExit(f"{way}: the result differs from torch's")
    compared = {"us": partial(add, a, b), "torch_us": partial(torch.add, a, b)}
    found = {"way": way, "first_s": seconds} | host_cost.medians(compared, DEVICE)
    if DEVICE.type == "cuda":
        sets = calls.buffers(LARGE, torch.float32, DEVICE)
        gpu = clock.gpu([partial(add, a, b) for _, a, b in sets])
        found |= {"gpu_us": gpu.median_us, "gb_per_s": 12 * LARGE / gpu.median_us / 1e3}
    return found


def in_own_process(way: str) -> dict | list[dict] | None:
    """What main() prints for --in-this-process; None, and a line on stderr, where that fails or needs a package."""
    with tempfile.TemporaryDirectory() as cache:
        names = ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
        env = build.toolchain.environment() | dict.fromkeys((*names, "TVM_FFI_CACHE_DIR"), cache)
        command = [sys.executable, __file__, "--in-this-process", way]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        print(f"{way}: {(done.stderr.strip() or 'failed').splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def compare_ways(ways: Sequence[str]) -> list[dict]:
    rows = []
    print(f"{'way':<26}{'first result s':>15}{'us per call':>12}{'torch.add us':>14}{'GB/s':>8}")
    for way in ways:
        if row := in_own_process(way):
            rows.append(row)
            rate = f"{row['gb_per_s']:.0f}" if "gb_per_s" in row else "-"
            print(f"{way:<26}{row['first_s']:>15.3f}{row['us']:>12.2f}{row['torch_us']:>14.2f}{rate:>8}", flush=True)
    return rows


def compare_layers() -> list[dict]:
    rows = in_own_process(LAYERS) or []
    print(f"{'the same C++ function, as':<42}{'no gradient us':>15}{'with gradient us':>18}")
    for row in rows:
        gradient = f"{row['grad_us']:.2f}" if "grad_us" in row else "-"
        print(f"{row['call']:<42}{row['us']:>15.2f}{gradient:>18}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Time each way to make an operator.")
    parser.add_argument("--way", action="append", choices=WAYS, help="one of them; may be repeated (default: all)")
    parser.add_argument("--host-cost", action="store_true", help="time each layer between Python and C++ instead")
    parser.add_argument("--json", type=files.target, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--in-this-process", metavar="WAY", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_this_process:
        layers = args.in_this_process == LAYERS
        print(
            json.dumps(importlib.import_module("layers").measure(DEVICE) if layers else measure(args.in_this_process))
        )
        return 0
    found = {"environment": cli.environment(DEVICE)}
    if args.host_cost:
        found["host_cost"] = rows = compare_layers()
        is_complete = bool(rows)
    else:
        ways = args.way or [way for way in WAYS if DEVICE.type == "cuda" or way not in ON_A_GPU]
        needed = args.way or {*ways} - {*OPTIONAL}
        found["ways"] = rows = compare_ways(ways)
        is_complete = {*needed} <= {row["way"] for row in rows}
    if args.json and rows:  # without any, a file of an earlier run is worth more
        files.write(args.json, files.to_json(found))
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
