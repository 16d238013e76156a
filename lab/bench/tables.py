"""What the two programs print: the machine, the builds, the tables, the progress, the errors."""

import datetime
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from . import Failure, clock
from .build import Build, symptoms
from .measure import Result


def environment(device: torch.device) -> dict[str, str | int | float]:
    """What a figure depends on beside the code."""
    found: dict[str, str | int | float] = {
        "device": str(device),
        "name": _cpu_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "command": command(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["name"] = properties.name
        found["driver"] = _driver()
        found["l2_bytes"] = properties.L2_cache_size
        if clock_khz := getattr(properties, "memory_clock_rate", 0):
            # Two transfers in each cycle of the memory's clock, each as wide as the bus.
            found["peak_gb_per_s"] = 2 * clock_khz * 1e3 * properties.memory_bus_width / 8 / 1e9
    return found


def command() -> str:
    """What the user typed."""
    return shlex.join(["python3", Path(sys.argv[0]).name, *sys.argv[1:]])


def describe(environment: dict[str, str | int]) -> str:
    cuda = f", CUDA {environment['cuda']}" if environment["cuda"] != "none" else ""
    driver = f", driver {environment['driver']}" if "driver" in environment else f", {environment['threads']} threads"
    where = f"{environment['device']}: {environment['name']}{driver}"
    return f"{where}; torch {environment['torch']}{cuda}, Python {environment['python']}"


def describe_build(build: Build) -> str:
    what = "loaded, built before," if build.cached else "built and loaded"
    return f"add2 by {build.compiler} ({build.binding}): {what} in {build.seconds:.2f} s: {build.library}"


def table(results: Sequence[Result], peak: float | None = None) -> str:
    """A block for each dtype and size, a line for each call. peak: the memory's GB/s, for the share of it."""
    by_line: dict[tuple[str, int, int], dict[tuple[str, str], dict[str, Result]]] = {}
    for result in results:
        line = by_line.setdefault((result.dtype, result.n, result.offset), {}).setdefault(
            (result.compiler, result.call), {}
        )
        line[result.clock] = result
    several = len({result.compiler for result in results}) > 1
    text = []
    for (dtype, n, offset), lines in by_line.items():
        clocks = [name for name in CLOCKS if any(name in line for line in lines.values())]
        best = clock.best(clocks)
        text.append(f"\n{n} elements of {dtype}, {3 * n * _itemsize(dtype) / 1e6:.6g} MB read and written")
        text[-1] += f"; views from element {offset} on" if offset else ""
        head = f"{'call':<26}" + "".join(f"{CLOCKS[name] + ' us':>13}" for name in clocks)
        text.append(head + f"{'GB/s':>9}" + (f"{'% peak':>8}" if peak else "") + f"{'x torch':>9}")
        for (compiler, call), found in lines.items():
            line = f"{f'{call} ({compiler})' if several else call:<26}"
            for name in clocks:
                line += (
                    f"{found[name].median_us:>12.2f}{'~' if found[name].doubt else ' '}" if name in found else " " * 13
                )
            line += f"{found[best].gb_per_s:>9.1f}" + (f"{found[best].gb_per_s / peak:>8.1%}" if peak else "")
            text.append(line + ("" if call == "copy" else f"{found[best].ratio_to_torch:>9.3f}"))
    return "\n".join(text)


def summary(results: Sequence[Result], peak: float | None = None) -> str:
    """The sweep in short: a line for each dtype and size, torch.add(out) against torch_launch_add2."""
    best = clock.best(result.clock for result in results)
    found = {(row.dtype, row.n, row.call, row.compiler): row for row in results if row.clock == best}
    compilers = list(dict.fromkeys(row.compiler for row in results))
    text = [f"\n{CLOCKS[best]} us, torch.add(out) and torch_launch_add2"]
    for compiler in compilers:
        label = f" ({compiler})" if len(compilers) > 1 else ""
        head = f"{'dtype' + label:<18}{'n':>13}{'torch us':>12}{'add2 us':>12}{'GB/s':>9}"
        text.append(head + (f"{'% peak':>8}" if peak else "") + f"{'x torch':>9}")
        for (dtype, n, call, of), row in found.items():
            if call == "torch_launch_add2" and of == compiler:
                torchs = found[dtype, n, "torch.add(out)", of]
                line = f"{dtype:<18}{n:>13}{torchs.median_us:>12.2f}{row.median_us:>12.2f}{row.gb_per_s:>9.1f}"
                text.append(line + (f"{row.gb_per_s / peak:>8.1%}" if peak else "") + f"{row.ratio_to_torch:>9.3f}")
    return "\n".join(text)


CLOCKS = {"host": "host", "events": "events", "gpu": "GPU", "gpu warm": "warm GPU"}  # heads of columns, in order

_LEGEND = {
    "host": "host       launch + kernel + synchronization by the host's clock, on the same tensors again and again",
    "events": "events     the kernel between two events, with a cold L2 cache, and what the events themselves cost",
    "gpu": "GPU        the kernel alone, by replayed CUDA graphs, with a cold L2 cache (tensors in turn)\n"
    "           torch.add and add2 return new memory; in a graph it is the same block each time",
    "gpu warm": "warm GPU   the same on one set of tensors, where they fit in the L2 cache",
}


def legend(results: Sequence[Result]) -> str:
    clocks = [name for name in CLOCKS if any(result.clock == name for result in results)]
    best = CLOCKS[clock.best(clocks)]
    text = ["\nMedians in microseconds:", *(_LEGEND[name] for name in clocks)]
    text.append(
        f"x torch    the time ({best}) over that of torch's counterpart; under 1 is faster. GB/s are of {best}, too"
    )
    if any(result.call == "copy" for result in results):
        text.append("copy       torch.neg(a, out=c): one tensor read and one written, by a kernel")
    if any(result.doubt for result in results):
        text.append("~          not to be trusted: between the 5th and the 95th percentile lies more than a quarter")
    return "\n".join(text)


def conclude(results: Sequence[Result], peak: float | None) -> None:
    """Print what follows the tables: the sweep in short, if it is one, and what the columns mean."""
    if len({(result.dtype, result.n) for result in results}) > 1:
        print(summary(results, peak))
    if results:
        print(legend(results))


def progress(points: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """The points (dtype, n), with a word on stderr where there are many: on a terminal one line that renews itself."""
    last = time.monotonic()
    terminal = sys.stderr.isatty()
    for i, (dtype, n) in enumerate(points, 1):
        if len(points) > 1 and (terminal or time.monotonic() - last > 10):
            last = time.monotonic()
            text = f"[{i}/{len(points)}] {n} elements of {dtype}"
            print(f"\r{text}\x1b[K" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)
        yield dtype, n


def bar(done: int, total: int, text: str) -> None:
    """How far it has come, on a terminal alone: one line on stderr that renews itself."""
    if sys.stderr.isatty():
        filled = 30 * done // total
        print(f"\r[{'#' * filled:<30}] {done}/{total} {text}\x1b[K", end="", file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Print on stdout, in place of the progress line if there is one."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(text, flush=True)


def note(text: str) -> None:
    """One line on stderr, in place of the progress line if there is one."""
    print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def fail(message: object, status: int = 1) -> int:
    """One message on stderr; returns the exit status."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    return status


def run(main: Callable[[], int]) -> int:
    """A program's main(), with a message instead of a traceback for what is not the program's own fault."""
    try:
        return main()
    except Failure as error:
        return fail(error)
    except torch.OutOfMemoryError as error:
        return fail(f"{error} Give smaller --sizes.")
    except RuntimeError as error:  # of torch's or add2's; known ones get their cure, others their traceback
        if (verdict := symptoms.explain(str(error))) is None:
            raise
        return fail(f"{error}\n{verdict}")
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
