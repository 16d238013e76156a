"""The pictures of time.py and train.py, drawn from the content of their JSON files."""

import matplotlib
from matplotlib.figure import Figure

# From the palette by Okabe and Ito, which colour-blind readers can tell apart ("Color Universal Design", 2008).
ORANGE, BLUE, RED = "#e69f00", "#0072b2", "#d55e00"
LINES = {"torch.add(out)": (ORANGE, "s"), "torch_launch_add2": (BLUE, "o"), "plain kernel": (RED, "^")}
STYLE = {"font.size": 11, "axes.titlesize": 11, "figure.titlesize": 11, "legend.fontsize": 10, "lines.markersize": 4}
STYLE |= {"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}


def _panels(content: dict, count: int) -> tuple[Figure, list]:
    """Panels one above the other, with the machine as title; 11 points are still readable as wide as a phone."""
    figure = Figure(figsize=(5.6, 0.5 + 2.5 * count), layout="constrained")
    figure.suptitle(f"{content['environment']['name']}, torch {content['environment']['torch']}", x=0.02, ha="left")
    return figure, list(figure.subplots(count, 1, squeeze=False, sharex=True)[:, 0])


@matplotlib.rc_context(STYLE)
def sweep(content: dict) -> Figure:
    """Over the number of elements: GB/s, with the memory's peak; the ratio to torch's time. One dtype, clock, build."""
    results = content["results"]
    clock = "gpu" if any(row["clock"] == "gpu" for row in results) else "host"
    chosen = {"clock": clock, "dtype": results[0]["dtype"], "compiler": results[0]["compiler"]}
    rows = sorted((row for row in results if chosen.items() <= row.items()), key=lambda row: row["n"])
    figure, (upper, lower) = _panels(content, 2)
    for call, (colour, marker) in LINES.items():
        if line := [row for row in rows if row["call"] == call]:
            n = [row["n"] for row in line]
            upper.plot(n, [row["gb_per_s"] for row in line], color=colour, marker=marker, label=call)
            if call != "plain kernel":  # far off; the upper panel shows it
                lower.plot(n, [row["ratio_to_torch"] for row in line], color=colour, marker=marker)
    if peak := content["environment"].get("peak_gb_per_s"):
        upper.axhline(peak, color="black", linestyle="--", linewidth=1, label="peak of the memory")
    upper.set_xscale("log", base=2)
    upper.set_ylim(0, None)
    shown = [row["ratio_to_torch"] for row in rows if row["call"] == "torch_launch_add2"]
    lower.set_ylim(min(0.9, *shown) - 0.005, max(1.1, *shown) + 0.005)  # wide enough that noise looks small
    lower.set_xlabel("elements")
    kind = "GPU time, cold L2 cache" if clock == "gpu" else "host time"
    upper.set_title(f"GB/s, {chosen['dtype']}, {kind}", loc="left")
    lower.set_title("time over torch's; below 1 is faster", loc="left")
    upper.legend()
    return figure


@matplotlib.rc_context(STYLE)
def training(content: dict) -> Figure:
    """For each epoch the loss; and the accuracy on the test images, if there is one."""
    runs = content["training"]
    curves = {"loss": "losses"} | ({"accuracy on the test images": "accuracies"} if runs[0]["accuracies"] else {})
    figure, panels = _panels(content, len(curves))
    for panel, (title, name) in zip(panels, curves.items(), strict=True):
        for run, colour, style in zip(runs, (BLUE, ORANGE), ("-", "--"), strict=False):
            label = "torch.add" if run["add"] == "torch" else f"add2 ({run['add']})"
            panel.plot(range(len(run[name])), run[name], color=colour, linestyle=style, label=label)
        panel.set_title(f"{title}, {content['settings']['model']}", loc="left")
        panel.legend()
    panels[0].set_ylim(0, None)
    panels[-1].set_xlabel("epoch")
    return figure
