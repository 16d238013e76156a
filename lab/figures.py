"""The tables and pictures of the pages, made from measurements: docs/results/*.json.

    python3 -m lab.figures            # write them again
    python3 -m lab.figures --check    # print which pages would change; exit status 1 if any would

A table stands in a page between `<!-- figures: NAME -->` and `<!-- end -->`; NAME is one of TABLES below.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from . import cli, files
from .bench import plots, tables
from .bench.sync_study import CASES
from .bench.tables import power
from .build import Build
from .build.cache import ROOT

RESULTS = ROOT / "docs" / "results"
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

STEPS = {  # call: its description in the page
    "torch.add(out)": "`torch.add(a, b, out=c)`",
    "plain kernel": "plain: one element at a time",
    "vector kernel": "vector: 16 bytes a thread",
    "small kernel": "small: blocks of 256 threads",
    "medium kernel": "medium: two vectors a thread",
    "large kernel": "large: streaming stores",
    "unaligned kernel": "unaligned",
}
DTYPES = ("float32", "float64", "float16", "bfloat16")
SIZES = sorted([*(2**k for k in range(10, 31, 2)), 2**20 + 1, 2**21, 2**23, 2**24 + 1])


def load(name: str) -> dict | list[dict]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def steps(name: str) -> str:
    """Each kernel of the lesson at each size of float32, GPU time in microseconds."""
    rows = [row for row in load(name)["results"] if row["clock"] == "gpu" and row["dtype"] == "float32"]
    found = {(row["call"], row["n"]): f"{row['median_us']:.{2 if row['median_us'] < 100 else 1}f}" for row in rows}
    sizes = sorted({row["n"] for row in rows})
    lines = [[text, *(found[call, n] for n in sizes)] for call, text in STEPS.items()]
    return table(["kernel", *map(power, sizes)], lines)


def ratios(*names: str, sizes: list[int], clock: str = "gpu") -> str:
    """The time over torch's, for each size and dtype; from the last run that has it."""
    rows = [row for name in names for row in load(name)["results"]]
    rows = [row for row in rows if row["clock"] == clock and row["call"] == "torch_launch_add2"]
    found = {(row["n"], row["dtype"]): f"{row['ratio_to_torch']:.3f}" for row in rows}
    return table(["n", *DTYPES], [[power(n), *(found[n, dtype] for dtype in DTYPES)] for n in sizes])


def study() -> str:
    """The four synchronizations, where the kernel is longer than its launch."""
    rows = [row for row in load("h200-study")["sync_study"] if row["call"] == "torch_launch_add2"]
    cells = []
    for row in (row for row in rows if row["n"] == max(row["n"] for row in rows)):
        name, reads = CASES[row["before"], row["after"]]
        cells.append([name, *(f"{row[key]:.{int(row[key] < 1000)}f}" for key in ("first_us", "median_us")), reads])
    return table(["synchronize", "first call", "median", "what the clock reads"], cells)


def training() -> str:
    """Each way to run a step, in microseconds, with add2 and with torch's own add in one run."""
    cells = []
    for run in load("h200-training"):
        if len(run["training"]) == 2:
            ways = run["ways"]
            way = "compiled" if ways["compile"] else "CUDA graph" if ways["cuda_graph"] else "eager"
            way += ", bfloat16" if run["settings"]["dtype"] == "bfloat16" else ""
            ours, torchs = (row["median_us_per_step"] for row in run["training"])
            cells.append([run["settings"]["model"], way, f"{ours:.0f}", f"{torchs:.0f}", f"{ours / torchs:.3f}"])
    return table(["model", "step", "add2", "torch.add", "ratio"], sorted(cells, key=lambda row: row[0], reverse=True))


def processes() -> str:
    """Steps a second of the residual network by batch and number of GPUs."""
    runs = [run for run in load("h200-training") if len(run["training"]) == 1]
    runs.sort(key=lambda run: (run["settings"]["batch"], run["processes"]))
    cells = [
        [str(run["settings"]["batch"]), str(run["processes"]), f"{1e6 / run['training'][0]['median_us_per_step']:.0f}"]
        for run in runs
    ]
    return table(["batch", "GPUs", "steps/s"], cells)


def headers() -> str:
    rows = load("cpu-headers")["headers"]
    return table(["header", "seconds"], [[f"`{row['headers']}`", f"{row['seconds']:.1f}"] for row in rows])


def host_cost() -> str:
    """The host's time for a call, and the other call that it is compared with."""
    cells = []
    for row in load("h200-host-cost")["host_cost"]:
        against = "" if row["against"] == row["call"] else row["against"]
        cells.append([row["call"], f"{row['median_us']:.2f}", f"{row['ratio']:.2f}" if against else "1", against])
    return table(["call", "us", "ratio", "to"], cells)


def first_run() -> str:
    """The output of time.py, by its own functions; folders and the compilers' commands are left out."""
    content = load("h200-first-run")
    build = Build(**content["build"][0], cold_seconds=0.0)
    build.library = Path("...", build.library)
    rows = [row for row in content["results"] if row["clock"] == "gpu" and row["call"] in FIRST]
    lines = [f"building add2 with {build.compiler} ({build.binding}) for CUDA for 9.0a, and the CPU ..."]
    lines += ["  $ ... (the compilers' and the linker's commands)", cli.describe(content["environment"], [build])]
    lines += [tables.table(rows, content["environment"]["peak_gb_per_s"]), tables.legend(rows)]
    return "\n".join(["```", *lines, "```"]) + "\n"


# Of each way in ways.json: to install, gradient, torch.compile, C++ programs, how to ship it.
WAYS = {
    "torch.add": ("torch", "yes", "yes", "yes", "nothing to ship"),
    "torch.compile": ("torch", "yes", "is it", "AOTInductor", "Python"),
    "triton_op": ("torch", "you register it", "sees into it", "AOTInductor", "Python"),
    "custom_op and cuda.core": ("torch, `cuda-core`", "you register it", "yes", "no", "Python"),
    "nvrtc": ("torch, `cuda-core`", "you register it", "yes", "no", "Python and the `.cuh`"),
    "jit": ("torch, nvcc, C++, ninja", "you register it", "yes", "yes", "sources"),
    "setup": ("torch, nvcc, C++", "you register it", "yes", "yes", "a wheel"),
    "cmake": ("torch, nvcc, C++, CMake", "you register it", "yes", "yes", "a library"),
    "pybind11": ("torch, nvcc, C++, ninja", "autograd.Function", "breaks the graph", "no", "a wheel for each torch"),
}


def ways() -> str:
    """Each way to make an operator, and its price."""
    head = ["way", "to install", "first result, s", "us a call", "GB/s at 2^26", "gradient", "torch.compile"]
    found = {row["way"]: row for row in load("h200-ways")["ways"]}
    lines = []
    for way, (install, *rest) in WAYS.items():
        row = found[way]
        figures = [f"{row['first_s']:.2g}", f"{row['us']:.1f} ({row['torch_us']:.1f})", f"{row['gb_per_s']:.0f}"]
        lines.append([way, install, *figures, *rest])
    return table([*head, "C++ programs", "shipped as"], lines)


FIRST = ("torch.add", "torch.add(out)", "add2", "torch_launch_add2")
TABLES = {
    "h200-steps": lambda: steps("h200-kernels"),
    "h100-steps": lambda: steps("h100-kernels"),
    "h200-ratios": lambda: ratios("h200-sweep", "h200-medium", sizes=SIZES),
    "h100-ratios": lambda: ratios("h100-sweep", sizes=SIZES),
    "cpu-ratios": lambda: ratios("cpu-2-threads", sizes=[2**k for k in range(4, 27, 2)], clock="host"),
    "first-run": first_run,
    "headers": headers,
    "host-cost": host_cost,
    "study": study,
    "training": training,
    "processes": processes,
    "ways": ways,
}


def rewritten(page: str) -> str:
    """The page with its tables made again; the text between two of them is not touched."""
    return MARKED.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n{match[4]}", page)


def pictures() -> dict[Path, bytes]:
    figures = {f"{name}.png": plots.sweep(load(name)) for name in ("h200-sweep", "h100-sweep")}
    figures["h200-timeline.png"] = plots.timeline(load("h200-study"))
    runs = [run for run in load("h200-training") if run["settings"]["model"] == "residual"]
    figures["h200-training.png"] = plots.training(runs[0])
    return {RESULTS / name: plots.render(figure, RESULTS / name) for name, figure in figures.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.figures", description="Write the pages' tables and pictures.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a table would change")
    args = parser.parse_args()
    pages = {page: page.read_text() for page in PAGES}
    stale = {page: new.encode() for page, text in pages.items() if (new := rewritten(text)) != text}
    if args.check:
        for page in stale:
            cli.note(f"{page.relative_to(ROOT)} does not show what is in docs/results: run `python3 -m lab.figures`")
        return 1 if stale else 0
    for path, content in (stale | pictures()).items():
        files.write(path, content)
        cli.show(str(path.relative_to(ROOT)))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main))
