"""The picture of time.py, drawn from the content of its JSON file."""

import matplotlib
from matplotlib.figure import Figure

# From the palette by Okabe and Ito, which colour-blind readers can tell apart ("Color Universal Design", 2008).
ORANGE, BLUE, RED = "#e69f00", "#0072b2", "#d55e00"
LINES = {"torch.add(out)": (ORANGE, "s"), "torch_launch_add2": (BLUE, "o"), "plain kernel": (RED, "^")}
# A picture 5.6 inches wide has letters of 11 pixels or more even on a phone.
WIDTH = 5.6
STYLE = dict.fromkeys(("font.size", "axes.titlesize", "figure.titlesize", "legend.fontsize"), 12.5)
STYLE |= {"lines.markersize": 4, "axes.axisbelow": True}
STYLE |= {"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}


@matplotlib.rc_context(STYLE)
def sweep(content: dict) -> Figure:
    """Over the number of elements: GB/s, with the memory's peak; the ratio to torch's time. One dtype, clock, build."""
    results = content["results"]
    clock = "gpu" if any(row["clock"] == "gpu" for row in results) else "host"
    chosen = {"clock": clock, "dtype": results[0]["dtype"], "compiler": results[0]["compiler"]}
    rows = sorted((row for row in results if chosen.items() <= row.items()), key=lambda row: row["n"])
    figure = Figure(figsize=(WIDTH, 6), layout="constrained")
    figure.suptitle(f"{content['environment']['name']}, torch {content['environment']['torch']}", x=0.02, ha="left")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for call, (colour, marker) in LINES.items():
        if line := [row for row in rows if row["call"] == call]:
            n = [row["n"] for row in line]
            upper.plot(n, [row["gb_per_s"] for row in line], color=colour, marker=marker, label=call)
            lower.plot(n, [row["ratio_to_torch"] for row in line], color=colour, marker=marker)
    if peak := content["environment"].get("peak_gb_per_s"):
        upper.axhline(peak, color="black", linestyle="--", linewidth=1, label="peak of the memory")
    upper.set_xscale("log", base=2)
    upper.set_ylim(0, None)
    shown = [row["ratio_to_torch"] for row in rows if row["call"] == "torch_launch_add2"]
    lower.set_ylim(min(0.9, *shown) - 0.005, max(1.1, *shown) + 0.005)  # wide enough that noise looks small
    lower.set_xlabel("elements")
    upper.set_title(f"GB/s, {chosen['dtype']}, by the clock `{clock}`", loc="left")
    lower.set_title("time over torch's; below 1 is faster", loc="left")
    figure.legend(loc="outside lower center", ncols=2)
    return figure
