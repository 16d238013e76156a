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
ORANGE, GREEN, BLUE, RED, GREY = ("#e69f00", "#009e73", "#0072b2", "#d55e00", "#8b949e")
INK, PAPER = "#1f2328", "#ffffff"
DARK = {INK: "#e6edf3", PAPER: "#161b22", BLUE: "#56b4e9"}  # in an SVG, where the reader's screen is dark
LINES = {"torch.add(out)": (ORANGE, "s"), "torch_launch_add2": (BLUE, "o"), "plain kernel": (RED, "^")}
WIDTH = 5.6  # inches; with 11 points still readable where the picture is as wide as a phone


def _panels(count: int, height: float, **options) -> tuple["Figure", list]:
    """A figure of panels one above the other, with text in one colour and one size."""
    import matplotlib
    from matplotlib.figure import Figure

    colours = {name: INK for name in ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")}
    with matplotlib.rc_context(colours | {"font.size": 11}):
        figure = Figure(figsize=(WIDTH, 0.5 + height * count), layout="constrained", facecolor=PAPER)
        panels = figure.subplots(count, 1, squeeze=False, **options)[:, 0]
    for panel in panels:
        panel.set_facecolor(PAPER)
        panel.grid(color=GREY, alpha=0.3)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(panels)


def _name_lines(panel, ends: dict[str, tuple[float, str]]) -> None:
    """Write each line's name to the right of its end (y, colour), no closer to each other than letters are high."""
    low, high = panel.get_ylim()
    step, free = 0.085 * (high - low), float("inf")
    places = []
    for name, (y, colour) in sorted(ends.items(), key=lambda item: -item[1][0]):
        free = min(y, free)
        places.append((name, free, colour))
        free -= step
    lift = max(0, low - places[-1][1])
    for name, y, colour in places:
        where = {"xycoords": panel.get_yaxis_transform(), "va": "center", "annotation_clip": False}
        panel.annotate(name, (1.01, y + lift), color=colour, fontsize=10, **where)


def sweep(content: dict) -> "Figure":
    """Over the number of elements: GB/s, with the memory's peak; and the ratio to torch's time. One dtype."""
    from .clock import best
    from .tables import name

    clock = best(row["clock"] for row in content["results"])
    rows = [row for row in content["results"] if row["clock"] == clock and row["call"] in LINES]
    dtype = "float32" if any(row["dtype"] == "float32" for row in rows) else rows[0]["dtype"]
    rows = sorted((row for row in rows if row["dtype"] == dtype), key=lambda row: row["n"])
    compilers = list(dict.fromkeys(row["compiler"] for row in rows))
    lines: dict[str, list[dict]] = {}
    for row in rows:
        if row["compiler"] == compilers[0] or row["call"] == "torch_launch_add2":
            lines.setdefault(name(row, compilers), []).append(row)
    figure, (upper, lower) = _panels(2, 2.6, sharex=True)
    speeds, ratios = {}, {}
    for label, line in lines.items():
        colour, marker = LINES[line[0]["call"]]
        style = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.5}
        style["linestyle"] = ["-", "--", ":", "-."][compilers.index(line[0]["compiler"]) % 4]
        n = [row["n"] for row in line]
        upper.plot(n, [row["gb_per_s"] for row in line], **style)
        band = [[row["bytes"] / row[end] / 1e3 for row in line] for end in ("high_us", "low_us")]
        upper.fill_between(n, *band, color=colour, alpha=0.2, linewidth=0)
        speeds[label] = (line[-1]["gb_per_s"], colour)
        if line[0]["call"] != "plain kernel":  # far off; the upper panel shows it
            lower.plot(n, [row["ratio_to_torch"] for row in line], **style)
            ratios[label] = (line[-1]["ratio_to_torch"], colour)
    if peak := content["environment"].get("peak_gb_per_s"):
        upper.axhline(peak, color=INK, linestyle="--", linewidth=1)
        speeds["peak of the memory"] = (peak, INK)
    upper.set_xscale("log", base=2)
    upper.set_ylim(0, None)
    shown = [row["ratio_to_torch"] for row in rows if row["call"] == "torch_launch_add2"]
    lower.set_ylim(min(0.9, *shown) - 0.005, max(1.1, *shown) + 0.005)
    lower.set_xlabel("elements")
    upper.set_title(
        f"GB/s, {dtype}, {'GPU time, cold L2 cache' if clock == 'gpu' else 'host time'}", loc="left", fontsize=11
    )
    lower.set_title("time over torch's; below 1 is faster", loc="left", fontsize=11)
    _name_lines(upper, speeds)
    _name_lines(lower, ratios)
    figure.suptitle(_title(content), fontsize=11, x=0.02, ha="left", color=INK)
    return figure


def timeline(content: dict) -> "Figure":
    """For each of the four synchronizations, on one time axis: the measured interval, the host, the GPU."""
    from matplotlib.patches import Patch

    from .sync_study import CASES

    colours = {"measured": RED, "launch": BLUE, "synchronization": ORANGE, "kernel": GREEN}
    lanes = ["GPU", "host", "clock"]
    figure, panels = _panels(len(CASES), 1.45, sharex=True)
    for panel, (name, reads) in zip(panels, CASES.values(), strict=True):
        for span in (span for span in content["timeline"] if span["case"] == name):
            colour, on_gpu = colours[span["name"]], span["row"] == "GPU"
            style = {"color": colour, "edgecolor": PAPER if on_gpu else "none", "linewidth": 0.8}
            if span["warm_up"] and on_gpu:
                style |= {"color": PAPER, "edgecolor": colour, "hatch": "////"}
            width, height = max(span["end_us"] - span["start_us"], 0.5), 0.35 if span["row"] == "clock" else 0.7
            panel.barh(lanes.index(span["row"]), width, left=span["start_us"], height=height, **style)
        panel.set_yticks(range(len(lanes)), lanes)
        panel.set_ylim(-0.5, len(lanes) - 0.5)
        panel.grid(visible=False, axis="y")
        panel.set_title(
            f"synchronize {name}" if name != "neither" else "no synchronization",
            loc="left",
            fontsize=11,
            fontweight="bold",
        )
        read = reads.replace(", and", ",\nand")
        panel.set_xlabel(f"the clock reads: {read}", fontsize=10, loc="left")
    panels[-1].set_xlim(0, None)
    labels = {"measured": "interval on the clock", "kernel": "kernel, timed"}
    legend = [Patch(color=colour, label=labels.get(name, name)) for name, colour in colours.items()]
    legend.insert(3, Patch(facecolor=PAPER, edgecolor=GREEN, hatch="////", label="kernel, warm-up"))
    box = figure.legend(handles=legend, loc="outside lower left", ncols=3, fontsize=9.5, frameon=False)
    for text in box.get_texts():
        text.set_color(INK)
    figure.suptitle(f"{_title(content)}; microseconds", fontsize=11, x=0.02, ha="left", color=INK)
    return figure


def training(content: dict) -> "Figure":
    """For each epoch the loss, on a log axis; and the accuracy on the test images, if there is one."""
    runs = content["training"]
    accuracies = bool(runs[0]["accuracies"])
    figure, panels = _panels(1 + accuracies, 2.2, sharex=True)
    ends: list[dict] = [{} for _ in panels]
    for run, colour, style in zip(runs, (BLUE, ORANGE), ("-", "--"), strict=False):
        label = "torch.add" if run["add"] == "torch" else f"add2 ({run['add']})"
        epochs = range(len(run["losses"]))
        line = {"color": colour, "linestyle": style, "marker": "." if len(epochs) < 50 else ""}
        curves = [run["losses"], [100 * share for share in run["accuracies"]]]
        for panel, end, curve in zip(panels, ends, curves, strict=False):
            panel.plot(epochs, curve, **line)
            end[label] = (curve[-1], colour)
    panels[0].set_title("loss", loc="left", fontsize=11)
    panels[0].set_ylim(0, None)
    panels[-1].set_xlabel("epoch")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    if accuracies:
        panels[1].set_title("accuracy on the test images, %", loc="left", fontsize=11)
    for panel, end in zip(panels, ends, strict=True):
        _name_lines(panel, end)
    figure.suptitle(f"{_title(content)}, {content['settings']['model']}", fontsize=11, x=0.02, ha="left", color=INK)
    return figure


def _title(content: dict) -> str:
    return f"{content['environment']['name']}, torch {content['environment']['torch']}"


def render(figure: "Figure", path: Path) -> bytes:
    """The picture as a file of the kind that the path's ending says. The same figure gives the same bytes.

    An SVG keeps its text as text and has colours for dark screens; a PNG has a palette, which keeps it small.
    """
    import matplotlib

    content = io.BytesIO()
    if path.suffix == ".svg":
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "add2"}):
            figure.savefig(content, format="svg", metadata={"Date": None})
        rules = [
            f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important; }}'
            for light, dark in DARK.items()
            for kind in ("fill", "stroke")
        ]
        style = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
        return content.getvalue().replace(b"</svg>", style.encode() + b"\n</svg>")
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
