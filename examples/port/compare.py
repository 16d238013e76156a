"""What a port gains: build time, size, wheels and host time of `before` and `after`, measured in one run.

    python3 examples/port/compare.py                    # both ports: minutes, for torch's large headers
    python3 examples/port/compare.py --json FILE

It needs a torch without CUDA, and builds in copies, by `python3 setup.py build_ext --inplace`. Build times are
processor seconds, which vary less than those of the clock where others use the machine. Host times are printed as
multiples of those of `torch.add` in the same process.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from lab import build, cli, files  # noqa: E402

PORTS = {"blend": HERE, "points": HERE.parent / "port_points"}
MEASURED = [f"examples/{PORTS[name].name}/{version}/{name}/csrc" for name in PORTS for version in ("before", "after")]
CALLS, SAMPLES = 20, 201  # few calls in a sample: others rarely interrupt one


def build_in_copy(folder: Path, source: Path) -> dict:
    """Build a copy of source in folder: processor seconds of all that ran, and the library's bytes."""
    shutil.copytree(source, folder, ignore=build.leftovers)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    env = build.toolchain.environment()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"compare.py: {source} does not build:\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (library,) = folder.glob("*/_C*.so")
    return {"build_s": seconds, "library_bytes": library.stat().st_size}


def median_us(call) -> float:
    def sample() -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        return (time.perf_counter() - start) / CALLS * 1e6

    sample()
    return statistics.median(sample() for _ in range(SAMPLES))


def host_times(name: str) -> dict:
    """In a process whose PYTHONPATH has the build: host microseconds of a small call, without and with a gradient."""
    a, leaf = torch.randn(1, 4, 4), torch.randn(1, 4, 4, requires_grad=True)
    if name == "blend":
        import blend

        def call(x):
            return blend.blend(x, a)
    else:
        import points

        index = torch.zeros(1, 4, 1, dtype=torch.int32)

        def call(x):
            return points.group(x, index)

    found = {"us": median_us(lambda: call(a)), "torch_add_us": median_us(lambda: torch.add(a, a))}
    found |= {"grad_us": median_us(lambda: call(leaf)), "torch_add_grad_us": median_us(lambda: torch.add(leaf, a))}
    try:
        torch.compile(call, fullgraph=True)(a)
        return found | {"compiles": True}
    except Exception:  # torch's own, of many kinds: the graph breaks at a function that it cannot see into
        return found | {"compiles": False}


def measure(name: str, version: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, version)
        built = build_in_copy(copy, PORTS[name] / version)
        command = [sys.executable, __file__, "--in-this-process", name]
        env = os.environ | {"PYTHONPATH": str(copy)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        timed = json.loads(done.stdout.splitlines()[-1])
    return {"port": name, "version": version} | built | timed


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what a port gains.")
    parser.add_argument("--json", type=files.target, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--in-this-process", metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_this_process:
        print(json.dumps(host_times(args.in_this_process)))
        return 0
    rows = []
    print(f"{'':<16}{'build, CPU s':>13}{'library, MB':>13}{'compiles':>10}{'x torch.add':>13}{'with gradient':>15}")
    for name in PORTS:
        for version in ("before", "after"):
            row = measure(name, version)
            rows.append(row)
            times = [row["us"] / row["torch_add_us"], row["grad_us"] / row["torch_add_grad_us"]]
            print(
                f"{name + ', ' + version:<16}{row['build_s']:>13.1f}{row['library_bytes'] / 1e6:>13.1f}"
                f"{'yes' if row['compiles'] else 'no':>10}{times[0]:>13.1f}{times[1]:>15.1f}",
                flush=True,
            )
    if args.json:
        where = cli.environment(torch.device("cpu"), places=MEASURED)
        files.write(args.json, files.to_json({"environment": where, "ports": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
