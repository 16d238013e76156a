"""The tables that time.py prints. A row is a dict, as calls.measure() returns it and as it stands in the JSON file."""

import math
from collections.abc import Sequence

# The columns in their order. GB/s and ratio belong to the first clock that a call has.
CLOCKS = {"gpu": "GPU us", "host": "host us", "events": "events us", "gpu warm": "warm GPU us"}


def clocks(rows: Sequence[dict]) -> list[str]:
    """The clocks of these rows. The first says most about the kernel: the GPU's own where there is one."""
    return [key for key in CLOCKS if any(row["clock"] == key for row in rows)]


def figure(value: float) -> str:
    """Four significant digits, as in the JSON file, and no exponent."""
    value = float(f"{value:.4g}")
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}" if value else "0"


def power(n: int) -> str:
    """2^20; 1000 and 2^20+1 for what lies between."""
    exponent = n.bit_length() - 1
    rest = n - 2**exponent
    return f"2^{exponent}" + (f"+{rest}" if rest else "") if n >= 16 and rest < 16 else str(n)


def table(rows: Sequence[dict], peak: float | None = None) -> str:
    """A block for each dtype and size, a line for each call (and build, if several). peak: the memory's GB/s."""
    builds = {row["compiler"] for row in rows}
    blocks: dict[tuple, dict[str, dict[str, dict]]] = {}
    for row in rows:
        label = row["call"] + (f" ({row['compiler']})" if len(builds) > 1 else "")
        blocks.setdefault((row["dtype"], row["n"]), {}).setdefault(label, {})[row["clock"]] = row
    columns, text = clocks(rows), []
    for (dtype, n), block in blocks.items():
        moved = max(row["bytes"] for found in block.values() for row in found.values())
        text.append(f"\n{power(n)} elements of {dtype}; all results as torch's; {moved / 1e6:.4g} MB read and written")
        head = f"{'call':<26}" + "".join(f"{CLOCKS[key]:>13}" for key in columns)
        text.append(head + f"{'GB/s':>9}" + (f"{'% peak':>8}" if peak else "") + f"{'ratio':>8}")
        for label, found in block.items():
            line = f"{label:<26}"
            for key in columns:
                row = found.get(key)
                line += f"{figure(row['median_us']) + ' ~'[row.get('noisy', False)] if row else '':>13}"
            best = next(found[key] for key in columns if key in found)
            line += f"{figure(best['gb_per_s']):>9}" + (f"{best['gb_per_s'] / peak:>8.1%}" if peak else "")
            text.append(line + ("" if best["call"] == "torch.neg" else f"{best['ratio_to_torch']:>8.3f}"))
    return "\n".join(text)


def legend(rows: Sequence[dict]) -> str:
    key = clocks(rows)[0]
    reads = "kernel time without the launch, with a cold L2 cache" if key == "gpu" else "time of a call"
    text = [f"\n{CLOCKS[key]}: median {reads}; GB/s, % peak and ratio belong to it (docs/timing.md)"]
    text.append("ratio: time over that of torch.add; of torch.add(out) for calls that write into c. Below 1 is faster")
    if any(row.get("noisy") for row in rows):
        text.append("~: noisy, the 5th to 95th percentile spread exceeds 25% of the median")
    return "\n".join(text)
