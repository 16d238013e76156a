"""The tables and pictures of the pages, made from what was measured: docs/results/*.json.

    python3 -m lab.figures            # write them anew
    python3 -m lab.figures --check    # say what would change; exit status 1 if anything would

A table stands in a page between `<!-- figures: NAME -->` and `<!-- end -->`; NAME is one of TABLES below.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from . import picture, report
from .build import Build
from .build.cache import ROOT
from .measure import Result
from .sync_study import CASES

RESULTS = ROOT / "docs" / "results"
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

STEPS = {  # call: what the page says of it
    "torch.add(out)": "`torch.add(a, b, out=c)`",
    "plain kernel": "plain: one element at a time",
    "vector kernel": "vector: 16 bytes a thread",
    "small kernel": "small: blocks of 256 threads",
    "medium kernel": "medium: two vectors a thread",
    "large kernel": "large: streaming stores",
    "unaligned kernel": "unaligned",
}
DTYPES = ("float32", "float64", "float16", "bfloat16")


def load(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def power(n: int) -> str:
    """2^20, 2^20+1."""
    exponent = n.bit_length() - 1
    return f"2^{exponent}" + (f"+{n - 2**exponent}" if n > 2**exponent else "")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def steps(name: str) -> str:
    """Each kernel of the lesson at each size of float32, GPU time in microseconds."""
    rows = [row for row in load(name)["results"] if row["clock"] == "gpu" and row["dtype"] == "float32"]
    found = {(row["call"], row["n"]): f"{row['median_us']:.2f}" for row in rows}
    sizes = sorted({row["n"] for row in rows})
    return table(
        ["kernel", *map(power, sizes)], [[what, *(found[call, n] for n in sizes)] for call, what in STEPS.items()]
    )


def ratios(*names: str, sizes: list[int], clock: str = "gpu") -> str:
    """The time over torch's, for each size and dtype; of several runs the last one that has it."""
    found = {}
    for name in names:
        for row in load(name)["results"]:
            if row["clock"] == clock and row["call"] == "torch_launch_add2":
                found[row["n"], row["dtype"]] = f"{row['ratio_to_torch']:.3f}"
    return table(["n", *DTYPES], [[power(n), *(found[n, dtype] for dtype in DTYPES)] for n in sizes])


def study() -> str:
    """The four synchronizations, where the kernel is longer than its launch."""
    rows = [row for row in load("h200-study")["sync_study"] if row["call"] == "torch_launch_add2"]
    largest = max(row["n"] for row in rows)
    cells = []
    for row in rows:
        if row["n"] == largest:
            name, what = CASES[row["before"], row["after"]]
            cells.append([name, f"{row['first_us']:.1f}", f"{row['median_us']:.1f}", what])
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
    cells = []
    for run in load("h200-training"):
        if len(run["training"]) == 1:
            each = run["training"][0]["median_us_per_step"]
            cells.append([str(run["settings"]["batch"]), str(run["processes"]), f"{1e6 / each:.0f}"])
    return table(["batch", "GPUs", "steps/s"], sorted(cells, key=lambda row: (int(row[0]), row[1])))


SIZES = sorted([*(2**k for k in range(10, 31, 2)), 2**20 + 1, 2**21, 2**23, 2**24 + 1])


def headers() -> str:
    cells = [[f"`{row['headers']}`", f"{row['seconds']:.1f}"] for row in load("cpu-headers")["headers"]]
    return table(["header", "seconds"], cells)


def host_cost() -> str:
    """What a call costs before it returns, and to which other call that is compared."""
    cells = []
    for row in load("h200-host-cost")["host_cost"]:
        against = "" if row["against"] == row["call"] else row["against"]
        cells.append([row["call"], f"{row['median_us']:.2f}", f"{row['ratio']:.2f}" if against else "1", against])
    return table(["call", "us", "ratio", "to"], cells)


def first_run() -> str:
    """What time.py printed, in the same words; folders and the compilers' commands are left out."""
    content = load("h200-first-run")
    build = Build(**content["build"][0], cold_seconds=0.0)
    build.library = Path("...", build.library)
    lines = [f"building add2 with {build.compiler} ({build.binding}) for CUDA for 9.0a, and the CPU ..."]
    lines += ["  $ ... (the compilers' and the linker's commands)", report.describe(content["environment"])]
    lines += [report.describe_build(build)]
    results = [Result(**row) for row in content["results"]]
    lines += [report.table(results, content["environment"]["peak_gb_per_s"])]
    return "\n".join(["```", *lines, "```"]) + "\n"


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
}


def rewritten(page: str) -> str:
    """The page with its tables made anew; the text between two of them is not touched."""
    return MARKED.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n{match[4]}", page)


def pictures() -> dict[Path, bytes]:
    sweeps = {RESULTS / f"{name}.png": picture.sweep(load(name)) for name in ("h200-sweep", "h100-sweep")}
    sweeps[RESULTS / "h200-timeline.png"] = picture.timeline(load("h200-study"))
    runs = [run for run in load("h200-training") if run["settings"]["model"] == "residual"]
    sweeps[RESULTS / "h200-training.png"] = picture.training(runs[0])
    return {path: picture.render(figure, path) for path, figure in sweeps.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.figures", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a table would change")
    args = parser.parse_args()
    pages = {page: page.read_text() for page in PAGES}
    stale = {page: new for page, text in pages.items() if (new := rewritten(text)) != text}
    if args.check:
        for page in stale:
            print(f"{page.relative_to(ROOT)} does not show what is in docs/results: run `python3 -m lab.figures`")
        return 1 if stale else 0
    for page, text in stale.items():
        page.write_text(text)
        print(page.relative_to(ROOT))
    for path, content in pictures().items():
        path.write_bytes(content)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
