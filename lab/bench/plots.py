"""How the pages' pictures look, and the one of time.py's results."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from .. import files

# From the palette by Okabe and Ito, which colour-blind readers can tell apart ("Color Universal Design", 2008).
ORANGE, BLUE, RED = "#e69f00", "#0072b2", "#d55e00"
LINES = {"torch.add(out)": (ORANGE, "s"), "torch_launch_add2": (BLUE, "o"), "plain kernel": (RED, "^")}
STYLE: dict[Any, Any] = dict.fromkeys(("font.size", "axes.titlesize", "figure.titlesize", "legend.fontsize"), 12.5)
STYLE |= {"lines.markersize": 4, "axes.axisbelow": True, "figure.figsize": (5.6, 6)}  # readable even on a phone
STYLE |= {"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
STYLE |= {"svg.fonttype": "none", "svg.hashsalt": "lesson"}  # text stays text; two runs write the same file
# Matplotlib names no colour for text, and writes those of lines and backgrounds into each element. So a reader's dark
# mode needs rules that win over an element's own style.
DARK = """@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
[style*="stroke: #000000"] { stroke: #e6edf3 !important }
[style*="fill: #ffffff"] { fill: #0d1117 !important }
[style*="stroke: #0072b2"] { stroke: #56b4e9 !important }
[style*="fill: #0072b2"] { fill: #56b4e9 !important }
[style*="stroke: #7570b3"] { stroke: #a29ee0 !important }
[style*="fill: #7570b3"] { fill: #a29ee0 !important }
}"""


def with_dark_mode(svg: bytes) -> bytes:
    """A picture whose background, text and axes follow the reader's dark mode."""
    return svg.replace(b"</style>", f"\n{DARK}</style>".encode(), 1)


def draw(path: Path, plot: Callable, content: dict) -> None:
    """Write a picture, .png, .pdf or .svg, which plot(figure, content) draws."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        plot(figure, content)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(buffer := io.BytesIO(), format=path.suffix[1:], dpi=150, metadata=metadata)
    picture = buffer.getvalue()
    files.write(path, with_dark_mode(picture) if path.suffix == ".svg" else picture)


def sweep(figure: Figure, content: dict) -> None:
    """GB/s over the number of elements, with the memory's peak; the ratio to torch's time. One dtype, clock, build."""
    where, rows = content["environment"], sorted(content["results"], key=lambda row: row["n"])
    clock = "gpu" if any(row["clock"] == "gpu" for row in rows) else "host"
    chosen = {"clock": clock, "dtype": rows[0]["dtype"], "compiler": rows[0]["compiler"]}
    rows = [row for row in rows if chosen.items() <= row.items()]
    figure.suptitle(f"{where['name']}, torch {where['torch']}", x=0.02, ha="left")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for call, (colour, marker) in LINES.items():
        if line := [row for row in rows if row["call"] == call]:
            n = [row["n"] for row in line]
            upper.plot(n, [row["gb_per_s"] for row in line], color=colour, marker=marker, label=call)
            lower.plot(n, [row["ratio_to_torch"] for row in line], color=colour, marker=marker)
    if peak := where.get("peak_gb_per_s"):
        upper.axhline(peak, color="black", linestyle="--", linewidth=1, label="peak of the memory")
    upper.set_xscale("log", base=2)
    upper.set_ylim(0, None)
    shown = [row["ratio_to_torch"] for row in rows if row["call"] == "torch_launch_add2"]
    lower.set_ylim(min(0.9, *shown) - 0.005, max(1.1, *shown) + 0.005)  # wide enough that noise looks small
    lower.set_xlabel("elements")
    upper.set_title(f"GB/s, {chosen['dtype']}, by the clock `{clock}`", loc="left")
    lower.set_title("time over torch's; below 1 is faster", loc="left")
    figure.legend(loc="outside lower center", ncols=2)
