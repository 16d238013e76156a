"""What time.py prints and writes: the machine, the builds, the table, the JSON file."""

import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from .compilers import Build
from .measure import Result
from .toolchain import BuildError


def environment(device: torch.device) -> dict[str, str | int]:
    """What a figure depends on beside the code."""
    found: dict[str, str | int] = {
        "device": str(device),
        "name": _cpu_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        found["name"] = torch.cuda.get_device_name(device)
        found["driver"] = _driver()
    return found


def describe(environment: dict[str, str | int]) -> str:
    cuda = f", CUDA {environment['cuda']}" if environment["cuda"] != "none" else ""
    driver = f", driver {environment['driver']}" if "driver" in environment else f", {environment['threads']} threads"
    where = f"{environment['device']}: {environment['name']}{driver}"
    return f"{where}; torch {environment['torch']}{cuda}, Python {environment['python']}"


def describe_build(build: Build) -> str:
    what = "loaded, built before," if build.cached else "built and loaded"
    return f"add2 by {build.compiler} ({build.binding}): {what} in {build.seconds:.2f} s: {build.library}"


def table(results: list[Result]) -> str:
    """A block for each dtype and size, a line for each call; GB/s and the ratio by the GPU's clock where it ran."""
    by_line: dict[tuple[str, int], dict[tuple[str, str], dict[str, Result]]] = {}
    for result in results:
        line = by_line.setdefault((result.dtype, result.n), {}).setdefault((result.compiler, result.call), {})
        line[result.clock] = result
    text = []
    several = len({result.compiler for result in results}) > 1
    for (dtype, n), lines in by_line.items():
        has_gpu = any("gpu" in clocks for clocks in lines.values())
        text.append(f"\n{n} elements of {dtype}, {3 * n * _itemsize(dtype) / 1e6:.6g} MB read and written")
        head = f"{'call':<26}{'host us':>10}" + (f"{'GPU us':>10}" if has_gpu else "")
        text.append(head + f"{'GB/s':>10}{'x torch':>10}")
        for (compiler, call), clocks in lines.items():
            label = f"{call} ({compiler})" if several else call
            gpu = f"{clocks['gpu'].median_us:>10.2f}" if has_gpu else ""
            best = clocks["gpu" if has_gpu else "host"]
            line = f"{label:<26}{clocks['host'].median_us:>10.2f}{gpu}"
            text.append(line + f"{best.gb_per_s:>10.1f}{best.ratio_to_torch:>10.3f}")
    return "\n".join(text)


LEGEND = """
Medians. host us: launch + kernel + synchronization, by the host's clock, synchronized before and after.
GPU us: the kernel alone, by the GPU's clock, over up to 512 sets of inputs, so that large ones are not in its cache;
torch.add and add2 write to the same new block each time. GB/s and x torch are of this time, else of the host's.
x torch: the time over that of torch's counterpart; under 1 is faster."""


def to_json(environment: dict, builds: list[dict], results: list[Result], correct: bool) -> dict:
    rows = [dataclasses.asdict(result) for result in results]
    return {"environment": environment, "build": builds, "results": rows, "correct": correct}


def build_row(build: Build) -> dict:
    row = {name: getattr(build, name) for name in ("compiler", "binding", "library", "seconds", "cached")}
    return row | {"library": str(build.library)}


def write_json(path: Path, content: dict) -> None:
    """In one piece: a reader of the file never sees half of it."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(path)


def fail(message: object, status: int = 1) -> int:
    """One message on stderr; returns the exit status."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    return status


def run(main: Callable[[], int]) -> int:
    """A program's main(), with a message instead of a traceback for what is not the program's own fault."""
    try:
        return main()
    except BuildError as error:
        return fail(error)
    except torch.OutOfMemoryError as error:
        return fail(f"{error} Give smaller --sizes.")
    except BrokenPipeError:  # `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return fail("interrupted", status=130)


def _itemsize(dtype: str) -> int:
    return getattr(torch, dtype).itemsize


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"
