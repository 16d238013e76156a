"""The pictures, drawn from what `time.py --json FILE` wrote; so they can be drawn again without measuring:

python3 -m lab.picture times.json --plot sweep.png --timeline timeline.png
"""

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .clock import best

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of the palette by Okabe and Ito, which colour-blind readers can tell apart ("Color Universal Design", 2008).
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE, GREY = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#999999",
)

LINES = {  # call: label, colour, marker
    "torch.add(out)": ("torch.add", ORANGE, "s"),
    "torch_launch_add2": ("add2", BLUE, "o"),
    "plain kernel": ("plain kernel", RED, "^"),
    "copy": ("device copy", GREY, "x"),
}

PAGE_WIDTH = 7.2  # inches


def missing() -> str | None:
    """None if pictures can be drawn, else what to install."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        return f"needs matplotlib ({error}): `python3 -m pip install matplotlib`"
    return None


def sweep(content: dict) -> "Figure":
    """For each dtype: GB/s over the number of elements, and the time over torch's."""
    from matplotlib.figure import Figure

    clock = best(row["clock"] for row in content["results"])
    rows = [row for row in content["results"] if row["clock"] == clock and row["call"] in LINES]
    compilers = list(dict.fromkeys(row["compiler"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    figure = Figure(figsize=(PAGE_WIDTH, 0.7 + 2.3 * len(dtypes)), layout="constrained")
    panels = figure.subplots(len(dtypes), 2, squeeze=False, sharex=True)
    peak = content["environment"].get("peak_gb_per_s")
    for (left, right), dtype in zip(panels, dtypes, strict=True):
        for compiler in compilers:
            for call, (label, colour, marker) in LINES.items():
                line = [row for row in rows if (row["compiler"], row["dtype"], row["call"]) == (compiler, dtype, call)]
                if not line or (compiler != compilers[0] and call != "torch_launch_add2"):
                    continue
                label = f"{label} ({compiler})" if call == "torch_launch_add2" and len(compilers) > 1 else label
                style = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.2, "label": label}
                style |= {"linestyle": ["-", "--", ":"][compilers.index(compiler)]}
                line.sort(key=lambda row: row["n"])
                n = [row["n"] for row in line]
                left.plot(n, [row["gb_per_s"] for row in line], **style)
                band = [[row["bytes"] / row[end] / 1e3 for row in line] for end in ("high_us", "low_us")]
                left.fill_between(n, *band, color=colour, alpha=0.2, linewidth=0)
                if call != "copy":  # which moves less: its time is not comparable
                    right.plot(n, [row["ratio_to_torch"] for row in line], **style)
        if peak:
            left.axhline(peak, color=BLACK, linestyle="--", linewidth=1, label=f"peak, {peak:.0f} GB/s")
        left.set(ylabel=f"{dtype}\nGB/s", ylim=(0, None))
        left.set_xscale("log", base=2)
        right.set(ylabel="time / torch's")
        for panel in (left, right):
            panel.grid(alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("elements")
    panels[0][0].set_title("memory throughput", fontsize="medium")
    panels[0][1].set_title("under 1: faster than torch", fontsize="medium")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize="small")
    figure.suptitle(_where(content, "GPU time, cold L2 cache" if clock == "gpu" else "host time"), fontsize="medium")
    return figure


def timeline(content: dict) -> "Figure":
    """For each of the four synchronizations, on one time axis: what the clock measured, the host, the GPU."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from .sync_study import CASES

    lanes = ["GPU", "host", "clock"]
    figure = Figure(figsize=(PAGE_WIDTH, 6.6), layout="constrained")
    panels = figure.subplots(len(CASES), 1, sharex=True)
    for panel, (name, what) in zip(panels, CASES.values(), strict=True):
        for span in (span for span in content["timeline"] if span["case"] == name):
            warm_up = span["warm_up"] and span["row"] == "GPU"
            colour = {"measured": RED, "launch": BLUE, "synchronization": ORANGE, "kernel": GREEN}[span["name"]]
            panel.barh(
                lanes.index(span["row"]),
                max(span["end_us"] - span["start_us"], 0.5),
                left=span["start_us"],
                height=0.35 if span["row"] == "clock" else 0.7,
                color="white" if warm_up else colour,
                edgecolor=colour if warm_up else "white" if span["row"] == "GPU" else "none",  # kernels stay apart
                hatch="////" if warm_up else None,
                linewidth=0.8,
            )
        panel.set_yticks(range(len(lanes)), lanes)
        panel.set_ylim(-0.5, len(lanes) - 0.5)
        panel.set_title(f"synchronize {name}: {what}" if name != "neither" else f"no synchronization: {what}")
        panel.title.set(fontsize="medium", ha="left", x=0)
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    panels[-1].set(xlabel="microseconds", xlim=(0, None))
    legend = [
        Patch(color=RED, label="what the clock measured"),
        Patch(color=BLUE, label="launch"),
        Patch(color=ORANGE, label="synchronization"),
        Patch(facecolor="white", edgecolor=GREEN, hatch="////", label="kernel, warm-up"),
        Patch(color=GREEN, label="kernel, timed"),
    ]
    figure.legend(handles=legend, loc="outside lower center", ncols=5, fontsize="small")
    figure.suptitle(_where(content, "torch_launch_add2, 2^24 float32, under torch.profiler"), fontsize="medium")
    return figure


def training(content: dict) -> "Figure":
    """The loss of each epoch, on a log axis, and beside it, where there is one, the accuracy on the test part."""
    from matplotlib.figure import Figure

    runs = content["training"]
    columns = 2 if runs[0]["accuracies"] else 1
    figure = Figure(figsize=(PAGE_WIDTH, 3), layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for run, colour, style in zip(runs, (BLUE, ORANGE), ("-", "--"), strict=False):
        label = "torch.add" if run["add"] == "torch" else f"add2 ({run['add']})"
        epochs = range(len(run["losses"]))
        line = {"color": colour, "linestyle": style, "label": label, "marker": "." if len(epochs) < 50 else ""}
        panels[0].plot(epochs, run["losses"], **line)
        if columns == 2:
            panels[1].plot(epochs, [100 * share for share in run["accuracies"]], **line)
    panels[0].set(ylabel="loss", yscale="log")
    panels[-1].set(**({"ylabel": "accuracy on the test images, %"} if columns == 2 else {}))
    for panel in panels:
        panel.set_xlabel("epoch")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    figure.suptitle(_where(content, f"train.py --model {content['settings']['model']}"), fontsize="medium")
    return figure


def render(figure: "Figure", path: Path) -> bytes:
    """The picture as a file of the kind that the path's ending says."""
    content = io.BytesIO()
    figure.savefig(content, dpi=200, format=path.suffix[1:])
    return content.getvalue()


def _where(content: dict, what: str) -> str:
    environment = content["environment"]
    return f"{environment['name']}, torch {environment['torch']}: {what}"


def main() -> int:
    from . import arguments
    from .record import write

    parser = argparse.ArgumentParser(prog="python3 -m lab.picture", description="Draw from a JSON file of time.py's.")
    parser.add_argument("json", type=arguments.record, metavar="FILE", help="what `time.py --json FILE` wrote")
    parser.add_argument("--plot", type=arguments.picture, metavar="FILE.png", help="GB/s and ratio over size")
    parser.add_argument("--timeline", type=arguments.picture, metavar="FILE.png", help="the four synchronizations")
    args = parser.parse_args()
    if not args.plot and not args.timeline:
        parser.error("nothing to draw; give --plot FILE.png or --timeline FILE.png")
    if args.plot and not args.json["results"]:
        parser.error("the JSON file has no results in it, so --plot has nothing to draw")
    if args.timeline and not args.json.get("timeline"):
        parser.error("the JSON file has no timeline in it: write one by `time.py --timeline FILE.png --json FILE.json`")
    if args.plot:
        write(args.plot, render(sweep(args.json), args.plot))
    if args.timeline:
        write(args.timeline, render(timeline(args.json), args.timeline))
    return 0


if __name__ == "__main__":
    sys.exit(main())
