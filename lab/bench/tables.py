"""The tables that time.py prints. A row is a dict, as calls.measure() returns it and as it stands in the JSON file."""

import argparse
import math
from collections.abc import Sequence

from .. import cli
from . import clock

CLOCKS = {"gpu": "GPU us", "host": "host us", "events": "events us", "gpu warm": "warm GPU us"}  # columns, in order


def figure(value: float | None) -> str:
    """Four significant digits, as in the JSON file."""
    if not value:
        return "-" if value is None else "0"
    value = float(f"{value:.4g}")
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}"


def power(n: int) -> str:
    """2^20; 1000 and 2^20+1 for what lies between."""
    exponent = n.bit_length() - 1
    rest = n - 2**exponent
    return f"2^{exponent}" + (f"+{rest}" if rest else "") if n >= 16 and rest < 16 else str(n)


def name(row: dict, compilers: Sequence[str]) -> str:
    """A row's name in every table and picture: the call, and its build where there are several."""
    return row["call"] + (f" ({row['compiler']})" if len(compilers) > 1 else "")


def table(rows: Sequence[dict], peak: float | None = None) -> str:
    """A block for each dtype and size, a line for each call. peak: the memory's GB/s."""
    compilers = list(dict.fromkeys(row["compiler"] for row in rows))
    lines: dict[tuple, dict[str, dict[str, dict]]] = {}
    for row in rows:
        block = lines.setdefault((row["dtype"], row["n"]), {})
        block.setdefault(name(row, compilers), {})[row["clock"]] = row
    clocks = [key for key in CLOCKS if any(row["clock"] == key for row in rows)]
    text = []
    for (dtype, n), block in lines.items():
        moved = max(row["bytes"] for found in block.values() for row in found.values())
        text.append(f"\n{power(n)} elements of {dtype}; all results as torch's; {moved / 1e6:.4g} MB read and written")
        head = f"{'call':<26}" + "".join(f"{CLOCKS[key]:>13}" for key in clocks)
        text.append(head + f"{'GB/s':>9}" + (f"{'% peak':>8}" if peak else "") + f"{'ratio':>8}")
        for label, found in block.items():
            best = found[clock.best(found)]
            cells = [
                figure(found[key]["median_us"]) + " ~"[found[key].get("noisy", 0)] if key in found else ""
                for key in clocks
            ]
            line = f"{label:<26}" + "".join(f"{cell:>13}" for cell in cells) + f"{figure(best['gb_per_s']):>9}"
            line += f"{best['gb_per_s'] / peak:>8.1%}" if peak else ""
            text.append(line + ("" if best["call"] == "torch.neg" else f"{best['ratio_to_torch']:>8.3f}"))
    return "\n".join(text)


def legend(rows: Sequence[dict]) -> str:
    clocks = {row["clock"] for row in rows}
    reads = "kernel time without the launch, with a cold L2 cache" if "gpu" in clocks else "time of a call"
    text = [f"\n{CLOCKS[clock.best(clocks)]}: median {reads}; GB/s, % peak and ratio belong to it (docs/timing.md)"]
    text.append("ratio: time over that of torch.add; of torch.add(out) for calls that write into c. Below 1 is faster")
    if any(row.get("noisy") for row in rows):
        text.append("~: noisy, the 5th to 95th percentile spread exceeds 25% of the median")
    return "\n".join(text)


def save(args: argparse.Namespace, content: dict) -> int:
    """Write the files that were asked for; a picture only of results. Returns the exit status."""
    draw = None
    if args.plot and content["results"]:
        from . import plots

        draw = plots.sweep
    return cli.save(args, content, draw)
