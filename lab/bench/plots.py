"""The pictures, drawn from JSON files, so that they can be drawn again without measuring:

python3 -m lab.bench.plots times.json --plot sweep.png --timeline timeline.png
"""

import argparse
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .. import cli, files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# From the palette by Okabe and Ito, which colour-blind readers can tell apart ("Color Universal Design", 2008).
BLACK, ORANGE, GREEN, BLUE, RED, GREY = ("#000000", "#E69F00", "#009E73", "#0072B2", "#D55E00", "#999999")
LINES = {
    "torch.add(out)": (ORANGE, "s"),
    "torch_launch_add2": (BLUE, "o"),
    "plain kernel": (RED, "^"),
    "torch.neg": (GREY, "x"),
}
PAGE_WIDTH = 7.2  # inches


def sweep(content: dict) -> "Figure":
    """For each dtype: GB/s over the number of elements, and the ratio to torch's time."""
    from matplotlib.figure import Figure

    from .clock import best
    from .tables import name

    clock = best(row["clock"] for row in content["results"])
    rows = [row for row in content["results"] if row["clock"] == clock and row["call"] in LINES]
    compilers = list(dict.fromkeys(row["compiler"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    figure = Figure(figsize=(PAGE_WIDTH, 0.7 + 2.3 * len(dtypes)), layout="constrained")
    panels = figure.subplots(len(dtypes), 2, squeeze=False, sharex=True)
    peak = content["environment"].get("peak_gb_per_s")
    for (left, right), dtype in zip(panels, dtypes, strict=True):
        lines: dict[str, list[dict]] = {}
        for row in sorted((row for row in rows if row["dtype"] == dtype), key=lambda row: row["n"]):
            if row["compiler"] == compilers[0] or row["call"] == "torch_launch_add2":
                lines.setdefault(name(row, compilers), []).append(row)
        for label, line in lines.items():
            colour, marker = LINES[line[0]["call"]]
            style = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.2, "label": label}
            style["linestyle"] = ["-", "--", ":", "-."][compilers.index(line[0]["compiler"]) % 4]
            n = [row["n"] for row in line]
            left.plot(n, [row["gb_per_s"] for row in line], **style)
            band = [[row["bytes"] / row[end] / 1e3 for row in line] for end in ("high_us", "low_us")]
            left.fill_between(n, *band, color=colour, alpha=0.2, linewidth=0)
            if line[0]["call"] != "torch.neg":  # which moves less: its time cannot be compared
                right.plot(n, [row["ratio_to_torch"] for row in line], **style)
        if peak:
            left.axhline(peak, color=BLACK, linestyle="--", linewidth=1, label=f"peak, {peak:.0f} GB/s")
        left.set(ylabel=f"{dtype}\nGB/s", ylim=(0, None))
        left.set_xscale("log", base=2)
        right.set(ylabel="time / torch.add(out)")
        for panel in (left, right):
            panel.grid(alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("elements")
    panels[0][0].set_title("memory throughput", fontsize="medium")
    panels[0][1].set_title("below 1: faster than torch", fontsize="medium")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize="small")
    figure.suptitle(_title(content, "GPU time, cold L2 cache" if clock == "gpu" else "host time"), fontsize="medium")
    return figure


def timeline(content: dict) -> "Figure":
    """For each of the four synchronizations, on one time axis: the measured interval, the host, the GPU."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from .sync_study import CASES

    colours = {"measured": RED, "launch": BLUE, "synchronization": ORANGE, "kernel": GREEN}
    lanes = ["GPU", "host", "clock"]
    figure = Figure(figsize=(PAGE_WIDTH, 6.6), layout="constrained")
    panels = figure.subplots(len(CASES), 1, sharex=True)
    for panel, (name, reads) in zip(panels, CASES.values(), strict=True):
        for span in (span for span in content["timeline"] if span["case"] == name):
            colour, on_gpu = colours[span["name"]], span["row"] == "GPU"
            style = {"color": colour, "edgecolor": "white" if on_gpu else "none", "linewidth": 0.8}
            if span["warm_up"] and on_gpu:
                style |= {"color": "white", "edgecolor": colour, "hatch": "////"}
            width, height = max(span["end_us"] - span["start_us"], 0.5), 0.35 if span["row"] == "clock" else 0.7
            panel.barh(lanes.index(span["row"]), width, left=span["start_us"], height=height, **style)
        panel.set_yticks(range(len(lanes)), lanes)
        panel.set_ylim(-0.5, len(lanes) - 0.5)
        title = f"synchronize {name}" if name != "neither" else "no synchronization"
        panel.set_title(f"{title}: {reads}", fontsize="medium", loc="left")
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    panels[-1].set(xlabel="microseconds", xlim=(0, None))
    labels = {"measured": "interval on the clock", "kernel": "kernel, timed"}
    legend = [Patch(color=colour, label=labels.get(name, name)) for name, colour in colours.items()]
    legend.insert(3, Patch(facecolor="white", edgecolor=GREEN, hatch="////", label="kernel, warm-up"))
    figure.legend(handles=legend, loc="outside lower center", ncols=5, fontsize="small")
    figure.suptitle(_title(content, "torch_launch_add2, 2^24 float32, under torch.profiler"), fontsize="medium")
    return figure


def training(content: dict) -> "Figure":
    """For each epoch the loss, on a log axis; and the accuracy on the test images, if there is one."""
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
            panels[1].set_ylabel("accuracy on the test images, %")
    panels[0].set(ylabel="loss", yscale="log")
    for panel in panels:
        panel.set_xlabel("epoch")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    figure.suptitle(_title(content, f"train.py --model {content['settings']['model']}"), fontsize="medium")
    return figure


def _title(content: dict, text: str) -> str:
    return f"{content['environment']['name']}, torch {content['environment']['torch']}: {text}"


def render(figure: "Figure", path: Path) -> bytes:
    """The picture as a file of the kind that the path's ending says; a .png with a palette, which keeps it small."""
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=path.suffix[1:])
    if path.suffix == ".png":
        from PIL import Image  # matplotlib needs it, too

        picture = Image.open(content).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        content = io.BytesIO()
        picture.save(content, "png", optimize=True)
    return content.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.bench.plots", description="Draw from time.py's JSON file.")
    parser.add_argument("json", type=Path, metavar="FILE", help="written by `time.py --json FILE`")
    parser.add_argument("--plot", type=cli.picture, metavar="FILE.png", help="GB/s and ratio over size")
    parser.add_argument("--timeline", type=cli.picture, metavar="FILE.png", help="the four synchronizations")
    args = parser.parse_args()
    if not args.plot and not args.timeline:
        parser.error("nothing to draw; give --plot FILE.png or --timeline FILE.png")
    try:
        content = json.loads(args.json.read_text())
        (args.plot and content["results"][0]), (args.timeline and content["timeline"][0])
        pictures = {path: draw(content) for path, draw in ((args.plot, sweep), (args.timeline, timeline)) if path}
    except OSError as error:
        parser.error(f"cannot read {args.json}: {error.strerror}")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        parser.error(f"{args.json} has not been written by `time.py --json` with what is to be drawn")
    for path, figure in pictures.items():
        files.write(path, render(figure, path))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main))
