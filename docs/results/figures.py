"""The tables and pictures of the pages, from the measurements in this folder (*.json).

    python3 docs/results/figures.py            # write them again
    python3 docs/results/figures.py --check    # print the pages whose tables are stale; exit status 1 if any are

A table stands in a page between `<!-- figures: NAME -->` and `<!-- end -->`; NAME is the name of a function below.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

RESULTS = Path(__file__).resolve().parent
ROOT = RESULTS.parents[1]
sys.path.insert(0, str(ROOT))

from lab.bench import calls, plots  # noqa: E402
from lab.bench.sync_study import CASES  # noqa: E402

PAGES = [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").glob("*.md")), RESULTS / "README.md"]
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
# Files of one machine that time.py wrote. Where two have the same figure, the last one counts.
RUNS = ("h200-float32", "h200-float64", "h200-float16", "h200-bfloat16", "h200-clocks")
OURS = "torch_launch_add2"


def load(name: str) -> dict | list[dict]:
    """The content of one file of this folder."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def timings(*names: str, clock: str = "gpu") -> dict[tuple, dict]:
    """The rows of these files by (call, dtype, n)."""
    rows = [row for name in names or RUNS for row in load(name).get("results", []) if row["clock"] == clock]
    return {(row["call"], row["dtype"], row["n"]): row for row in rows}


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def us(row: dict | float) -> str:
    """Microseconds; a noisy row has a ~."""
    value = row["median_us"] if isinstance(row, dict) else row
    mark = " ~" if isinstance(row, dict) and row.get("noisy") else ""
    return f"{value:.{2 if value < 100 else 1 if value < 1000 else 0}f}{mark}"


OPERATORS = ("torch", "add2", "extension-cpp", "articles")
HEAD = ["on an H200", "torch", "add2", "[extension-cpp][official]", "[articles][articles]"]
HEAD_ZH = ["在一块 H200 上", "torch", "add2", "[extension-cpp][official]", "[文章][articles]"]
ROWS = {  # of h200-others.json: what was measured
    "out": ["host time, writing into `c`", "CPU 端开销：写入已有的 `c`"],
    "new": ["host time, returning a tensor", "CPU 端开销：返回新张量"],
    "grad": ["the same, with a gradient", "CPU 端开销：返回新张量，并需要梯度"],
    "gpu": ["GPU time, 2^26 elements", "GPU 时间：2^26 个元素"],
    "build setup": ["build with `setup.py`", "用 `setup.py` 编译"],
    "build jit": ["build with jit", "用 jit 编译"],
}


def others(language: int = 0) -> str:
    """README.md: times over that of torch's own call, builds in seconds. Rows of two operators or more."""
    found = {}
    for row in load("h200-others")["compare"]:
        text = f"{row['seconds']:.1f} s" if "seconds" in row else f"{row['ratio_to_torch']:.2f}"
        found[row["what"], row["operator"]] = text
    lines = [[label[language], *(found.get((what, name), "-") for name in OPERATORS)] for what, label in ROWS.items()]
    lines = [[HEAD, HEAD_ZH][language], *(line for line in lines if line.count("-") < 4)]
    head, *rows = zip(*(column for column in zip(*lines, strict=True) if {*column[1:]} != {"-"}), strict=True)
    return table(head, rows)


def first_run() -> str:
    """The end of time.py's output: its largest size, without the legend."""
    content = load("h200-first-run")
    rows = [row for row in content["results"] if row["n"] == 2**26]
    shown = calls.table(rows, content["environment"]["peak_gb_per_s"]).strip("\n")
    return f"```\n{shown}\n```\n"


def clocks() -> str:
    """docs/7_timing.md: the clocks, and one call by each of them, at all sizes that were timed by all."""
    found = {clock: timings(clock=clock) for clock in ("host", "events", "gpu", "gpu warm")}
    sizes = [2**k for k in range(31) if all((OURS, "float32", 2**k) in rows for rows in found.values())]
    lines = []
    for clock, rows in found.items():
        lines.append([f"`{clock}`", calls.CLOCKS[clock][1], *(us(rows[OURS, "float32", n]) for n in sizes)])
    return table(["clock", "it reads", *map(calls.power, sizes)], lines)


def study() -> str:
    """docs/7_timing.md: the study of add2, where the kernel is longer than its launch."""
    rows = [row for row in load(RUNS[0])["sync_study"] if (row["call"], row["n"]) == (OURS, 2**26)]
    cases = [(row, *CASES[row["before"], row["after"]]) for row in rows]
    lines = [[name, us(row["first_us"]), us(row["median_us"]), reads] for row, name, reads in cases]
    return table(["synchronize", "first call", "median", "what the clock reads"], lines)


def steps() -> str:
    """docs/8_kernels.md: each kernel of the lesson at some sizes of float32, GPU time in microseconds."""
    described = {
        "torch.add(out)": "`torch.add(a, b, out=c)`",
        "plain kernel": "plain: one element at a time",
        "vector kernel": "vector: 16 bytes per thread",
        "unaligned kernel": "unaligned",
    }
    found, sizes = timings(), [2**k for k in (10, 20, 22, 26)]
    lines = [[text, *(us(found[call, "float32", n]) for n in sizes)] for call, text in described.items()]
    return table(["kernel", *map(calls.power, sizes)], lines)


def life() -> str:
    """docs/8_kernels.md: bytes per thread, speed, and the life of a thread that follows from them, at 2^30 elements."""
    resident = 132 * 2048  # threads that an H200 holds at once: multiprocessors x threads on each
    found, lines = timings(), []
    for name, carried in {"plain float16": 6, "plain float32": 12, "plain float64": 24, "add2 float32": 48}.items():
        kernel, dtype = name.split()
        speed = found[OURS if kernel == "add2" else "plain kernel", dtype, 2**30]["gb_per_s"]
        lines.append([name, str(carried), f"{speed / 1e3:.2f}", f"{resident * carried / speed / 1e3:.2f}"])
    return table(["kernel", "bytes per thread", "TB/s", "life, us"], lines)


def ratios(*names: str, clock: str = "gpu") -> str:
    """docs/results/README.md: the time over torch's, for each size and dtype."""
    found = {key[1:]: row for key, row in timings(*names, clock=clock).items() if key[0] == OURS}
    sizes = sorted({n for _, n in found if all((dtype, n) in found for dtype in calls.DTYPES)})
    lines = [[calls.power(n), *(f"{found[dtype, n]['ratio_to_torch']:.3f}" for dtype in calls.DTYPES)] for n in sizes]
    return table(["n", *calls.DTYPES], lines)


cpu_ratios, others_zh = partial(ratios, "cpu-sweep", clock="host"), partial(others, 1)


def headers() -> str:
    """docs/6_builds.md: seconds to compile each header."""
    rows = load("cpu-headers")["headers"]
    return table(["header", "seconds"], [[f"`{row['headers']}`", f"{row['seconds']:.1f}"] for row in rows])


def host_cost() -> str:
    """docs/4_gradients.md: the host's time for each call, without and with a gradient wanted."""
    found = {row["call"]: f"{row['median_us']:.2f}" for row in load("h200-host-cost")["host_cost"]}
    names = dict.fromkeys(name.removesuffix(", with grad") for name in found)
    lines = [[f"`{name}`", found.get(name, ""), found.get(f"{name}, with grad", "")] for name in names]
    return table(["call", "no gradient", "with gradient"], lines)


def training() -> str:
    """docs/several-gpus.md: microseconds of a step, with add2 and with torch's own add in one run."""
    lines = []
    for run in load("h200-training"):
        way = "compiled" if run["ways"]["compile"] else "CUDA graph" if run["ways"]["cuda_graph"] else "eager"
        way += ", bfloat16" if run["settings"]["dtype"] == "bfloat16" else ""
        ours, torchs = (row["median_us_per_step"] for row in run["training"])
        lines.append([run["settings"]["model"], way, f"{ours:.0f}", f"{torchs:.0f}", f"{ours / torchs:.3f}"])
    return table(["model", "step", "add2", "torch.add", "ratio"], lines)


def ways() -> str:
    """docs/15_ways.md: what each way takes to install, and its price where it was measured."""
    measured = {row["way"]: row for run in load("h200-ways") for row in run.get("ways", [])}
    lines = []
    for row in load("ways-packages")["packages"]:
        lines.append([f"[{row['way']}]({row['link']})", row["licence"], row["to_install"], row["without_gpu"]])
        found = measured.get(row["way"])
        times = [f"{found['first_s']:.2g}", f"{found['us']:.0f} ({found['torch_us']:.1f})"] if found else ["-", "-"]
        lines[-1] += [row["from_cpp"], *times]
    head = ["way", "licence", "to install", "compiles without a GPU", "from C++, ahead of time"]
    return table([*head, "first result, s", "us per call"], lines)


def layers() -> str:
    """docs/15_ways.md: the host's price of each layer between Python and C++."""
    rows = [row for run in load("h200-ways") for row in run.get("host_cost", [])]
    lines = [[row["call"], *(f"{row[key]:.2f}" if key in row else "" for key in ("us", "grad_us"))] for row in rows]
    return table(["the same C++ function, as", "no gradient", "with gradient"], lines)


def digits(x: float) -> str:
    return f"{x:.0f}" if x >= 1000 else f"{x:.3g}"


def rms_norm_steps() -> str:
    """docs/10_add_rms_norm.md: microseconds of each step of the ladder."""
    found: dict[str, dict[str, str]] = {}
    for row in load("h200-add-rms-norm-steps")["results"]:
        found.setdefault(f"{row['pass']}: {row['step']}", {})[f"{row['rows']} x {row['width']}"] = digits(row["us"])
    shapes = list(dict.fromkeys(shape for line in found.values() for shape in line))
    lines = [[name, *(line.get(shape, "") for shape in shapes)] for name, line in found.items()]
    return table(["step", *shapes], lines)


def rms_norm() -> str:
    """docs/10_add_rms_norm.md: microseconds of a few shapes, ours and the best of the others."""
    found = {(row["pass"], row["width"], row["rows"]): row for row in load("h200-add-rms-norm")["results"]}
    lines = []
    shapes = [(1024, 1), (1024, 16384), (4096, 2048), (16384, 16384), (32768, 16384), (65536, 64), (65536, 2048)]
    for shape in [*shapes, (131072, 64)]:
        lines.append([str(number) for number in shape])
        for what in ("forward", "forward + backward"):
            row = found[(what, *shape)]
            best = min(row[name] for name in ("torch", "torch.compile", "liger", "quack") if name in row)
            lines[-1] += [digits(best), digits(row["add_rms_norm"]), f"{row['of_peak']:.0%}"]
    columns = ["best other", "ours", "of peak"]
    return table(["width", "rows", *columns, "and backward: best other", *columns[1:]], lines)


def matmul() -> str:
    """docs/11_matmul.md: speed of each rung, what a profiler counts at 4096 cubed, and the lines of its kernel."""
    results = [row for row in load("h200-matmul")["results"] if row["m"] == row["n"] == row["k"]]
    found = {(row["rung"], row["m"]): row for row in results}
    folder, lines = ROOT / "examples" / "matmul", []
    code = "".join((folder / name).read_text() for name in ("ladder.cu", "product.cuh"))
    for number, row in enumerate(load("h200-matmul-ncu")["results"], 1):
        name = row["rung"]
        kernel = re.search(rf"^// {number}\. .*?^}}$", code, re.MULTILINE | re.DOTALL)
        lines.append([f"{number}. {name}" if kernel else name, digits(found[name, 4096]["tflops"])])
        lines[-1] += [f"{found[name, n]['of_torch']:.3f}" if (name, n) in found else "" for n in (4096, 8192)]
        lines[-1] += [f"{row['tensor_percent']:.0f}%", f"{row['l2_to_sm_bytes'] / 1e9:.2g}"]
        lines[-1] += [digits(row["instructions"] / 1e6), str(kernel[0].count("\n") + 1) if kernel else ""]
    head = ["rung", "TFLOP/s, 4096", "of torch", "at 8192", "tensor cores", "GB from L2", "10^6 instructions", "lines"]
    return table(head, lines)


def int4_linear() -> str:
    """docs/12_int4_linear.md: microseconds of the layer and, behind a comma, of bf16 F.linear, for each size."""
    rows = {(row["n"], row["k"], row["batch"]): row for row in load("h200-int4")["results"]}
    batches = [batch for batch in (1, 16, 64, 128, 256, 1024) if any(key[2] == batch for key in rows)]
    lines = []
    for n, k in dict.fromkeys(key[:2] for key in rows):
        found = [rows[n, k, batch] for batch in batches]
        times = (f"{digits(row['int4_linear'])}, {digits(row['F.linear'])}" for row in found)
        lines.append([f"{n} x {k}", *times])
    return table(["N x K", *(f"{batch} rows" if batch > 1 else "1 row" for batch in batches)], lines)


def int4_linear_steps() -> str:
    """docs/12_int4_linear.md: microseconds of each step, for each batch."""
    found: dict[str, dict[int, str]] = {}
    for row in load("h200-int4-steps")["results"]:
        found.setdefault(row["step"], {})[row["batch"]] = digits(row["us"])
    batches = sorted({batch for times in found.values() for batch in times})
    lines = [[name, *(times.get(batch, "") for batch in batches)] for name, times in found.items()]
    return table(["step", *(f"{batch} rows" if batch > 1 else "1 row" for batch in batches)], lines)


def decode_attention() -> str:
    """docs/13_decode_attention.md: microseconds of torch's fastest attention, and ours, for each size."""
    lines = []
    for row in load("h200-decode-attention")["results"]:
        if "what" not in row:
            shape = f"{row['batch']} x {row['tokens']}", f"{row['heads']}/{row['key_heads']}, {row['d']}"
            exact, mask = (min(us for name, us in row.items() if name.endswith(end)) for end in ("exact", "mask"))
            times = row["floor_us"], exact, mask, row["attend"], row["attend, int8"]
            lines.append([*shape, *map(digits, times), f"{row['of_best']:.2f}"])
    head = ["batch x tokens", "heads, d", "floor", "torch, exact", "torch, mask", "attend", "attend, int8"]
    return table([*head, "attend / torch"], lines)


def decode_attention_steps() -> str:
    """docs/13_decode_attention.md: each step of the ladder, with its share of the memory's peak."""
    found: dict[str, list[str]] = {}
    for row in load("h200-decode-attention-steps")["results"]:
        found.setdefault(row["step"], []).append(f"{digits(row['us'])} ({row['of_peak']:.0%})")
    return table(["step", *(f"{tokens} tokens" for tokens in (512, 4096, 32768))], [[k, *v] for k, v in found.items()])


LLAMA = "ours, 4 bits, also the last layer"


def noted(content: dict, text: str) -> str:
    """The file's note, if it has one, below a table."""
    return f"{text}\n{content['environment']['note']}\n" if "note" in content["environment"] else text


def llama_prize(
    sentence: str = "It writes {} tokens per second for one user; `torch.compile` {} in bf16{}.\n",
    addition: str = ", {} with torch's own 4-bit kernel",
) -> str:
    """README.md: tokens per second for one text after 512 tokens."""
    rows = [row for row in load("h200-llama")["results"] if (row.get("batch"), row.get("context")) == (1, 512)]
    found = {row["who"]: f"{row['tokens_per_s']:.0f}" for row in rows}
    other = found.get("torch.compile, torch's 4 bits")
    return sentence.format(found[LLAMA], found["torch.compile, bf16"], addition.format(other) if other else "")


llama_prize_zh = partial(
    llama_prize,
    "它为一个用户每秒生成 {} 个 token；`torch.compile` 用 bf16 时为 {}{}。\n",
    "，用 torch 自带的 4 bit kernel 时为 {}",
)


def llama() -> str:
    """docs/14_llama.md: tokens per second of each contestant, for each batch and context."""
    content, found = load("h200-llama"), {}
    for row in content["results"]:
        if "batch" in row:
            speed = row["tokens_per_s"] if row["batch"] else row["ms"]
            found.setdefault(row["who"], {})[row["batch"], row["context"]] = f"{speed:.0f}"
    columns = {(1, 512): "1 x 512", (1, 4096): "1 x 4096", (1, 32768): "1 x 32768, int8"}
    columns |= {(16, 1024): "16 x 1024", (64, 1024): "64 x 1024", (0, 2048): "prompt of 2048, ms"}
    rows = [[who, *(row.get(key, "") for key in columns)] for who, row in found.items()]
    return noted(content, table(["batch x context", *columns.values()], rows))


def llama_steps() -> str:
    """docs/14_llama.md: milliseconds of a step on each rung, and what the rung saves."""
    content, before, lines = load("h200-llama-steps"), None, []
    for row in content["results"]:
        saved = f"{before - row['ms']:.2f}" if before else ""
        lines.append([row["step"], f"{row['ms']:.2f}", saved, f"{row['tokens_per_s']:.0f}"])
        before = row["ms"]
    return noted(content, table(["step", "ms per token", "saved", "tokens per second"], lines))


def llama_kernels() -> str:
    """docs/14_llama.md: where the time of a step goes."""
    content = load("h200-llama-kernels")
    kernels = content["results"][0]["kernels"]
    shown = [[f"`{row['name']}`", str(row["calls"]), digits(row["us"])] for row in kernels[:4]]
    rest = [sum(row[what] for row in kernels[4:]) for what in ("calls", "us")]
    everything = sum(row["us"] for row in kernels)
    return noted(
        content, table(["kernel", "calls", f"of {digits(everything)} us"], [*shown, ["others", *map(digits, rest)]])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a table would change")
    is_check, stale = parser.parse_args().check, 0
    for page in PAGES:
        text = page.read_text()
        new = MARKED.sub(lambda found: f"{found[1]}\n{globals()[found[2].replace('-', '_')]()}\n{found[4]}", text)
        if new != text:
            print(page.relative_to(ROOT))
            stale += 1
            if not is_check:
                page.write_text(new)
    if is_check:
        return 1 if stale else 0
    sweep = {"environment": load(RUNS[0])["environment"], "results": list(timings().values())}
    plots.sweep(sweep).savefig(RESULTS / "h200-sweep.svg")  # of docs/7_timing.md, by the function of time.py
    return 0


if __name__ == "__main__":
    sys.exit(main())
