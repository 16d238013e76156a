"""The tables and pictures of the pages: their rows, their words, and the measurements that they show.

`python3 -m lab.figures` puts them into the pages, by the names in TABLES and PICTURES at the end.
"""

from types import SimpleNamespace

from lab import cli
from lab.bench import calls
from lab.bench.calls import power
from lab.bench.sync_study import CASES
from lab.figures import load

# Files of one machine that time.py wrote. Where two have the same figure, the last one counts.
RUNS = ("h200", "h200-float64", "h200-float16", "h200-bfloat16", "h200-clocks")
DTYPES = ("float32", "float64", "float16", "bfloat16")
OURS = "torch_launch_add2"


def timings(*names: str, clock: str = "gpu") -> dict[tuple, dict]:
    """The rows of these files by (call, dtype, n)."""
    rows = [row for name in names or RUNS for row in load(name).get("results", []) if row["clock"] == clock]
    return {(row["call"], row["dtype"], row["n"]): row for row in rows}


def part(name: str) -> list[dict]:
    """Another part of time.py's file, such as "sync_study"; of the last run that has it."""
    return next(found for run in reversed(RUNS) if (found := load(run).get(name)))


def table(*lines: list[str]) -> str:
    head, *rows = lines
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def microseconds(value: float) -> str:
    return f"{value:.{2 if value < 100 else 1 if value < 1000 else 0}f}"


# --- docs/6_timing.md


READS = {  # clock: what it reads, the state of the L2 cache
    "host": ("launch + kernel + synchronization", "warm: the same tensors each time"),
    "events": ("the kernel and the two events around it", "cold: flushed before each call"),
    "gpu": ("the kernel: calls replayed from a CUDA graph", "cold: tensors in turn"),
    "gpu warm": ("the same on one set of tensors", "warm"),
}


def clocks() -> str:
    """The clocks, and one call by each of them, at all sizes that were timed by all."""
    found = {clock: timings(clock=clock) for clock in READS}
    sizes = [2**k for k in range(31) if all((OURS, "float32", 2**k) in rows for rows in found.values())]
    lines = [
        [f"`{clock}`", *READS[clock], *(microseconds(rows[OURS, "float32", n]["median_us"]) for n in sizes)]
        for clock, rows in found.items()
    ]
    return table(["clock", "it reads", "L2 cache", *map(power, sizes)], *lines)


def studied() -> list[dict]:
    """The study of add2, where the kernel is longer than its launch."""
    return [row for row in part("sync_study") if (row["call"], row["n"]) == (OURS, 2**26)]


def study() -> str:
    """The four synchronizations."""
    lines = []
    for row in studied():
        name, reads = CASES[row["before"], row["after"]]
        lines.append([name, microseconds(row["first_us"]), microseconds(row["median_us"]), reads])
    return table(["synchronize", "first call", "median", "what the clock reads"], *lines)


def lies() -> str:
    """A list: each mistake, its figure, and the right figure of the same machine."""
    found, us = timings(), microseconds
    both, _, after, neither = studied()
    kernel = found[OURS, "float32", 2**26]["median_us"]
    mean = sum(after["samples_us"]) / len(after["samples_us"])
    warm, cold = (timings(clock=clock)["torch.add(out)", "float16", 2**22] for clock in ("gpu warm", "gpu"))
    into, new, ours = (found[call, "float32", 2**20]["median_us"] for call in ("torch.add(out)", "torch.add", "add2"))
    doubles = [row for key, row in found.items() if key[:2] == (OURS, "float64")]
    best = min(doubles, key=lambda row: row["ratio_to_torch"])
    large = max(doubles, key=lambda row: row["n"])
    return f"""\
1. **Do not wait for the GPU:** 2^26 elements in {us(neither["median_us"])} us: \
{12 * 2**26 / neither["median_us"] / 1e6:.0f} TB/s. The kernel takes {us(kernel)} us, the call with its wait \
{us(both["median_us"])}.
2. **Take the mean, with the first call in it** ('after only'): {us(mean)} us. The median is \
{us(after["median_us"])}; one call waited for earlier ones.
3. **Repeat on the same tensors:** {warm["gb_per_s"] / 1e3:.1f} TB/s for float16 at 2^22, more than the memory has. \
From memory it is {cold["gb_per_s"] / 1e3:.1f}.
4. **Compare a call that allocates with one that does not:** `add2` takes {ours / into:.2f} of the time of \
`torch.add(out=)` at 2^20, and {ours / new:.2f} of that of `torch.add`, which allocates too.
5. **Choose the size:** {best["ratio_to_torch"]:.2f} of torch's time, for float64 at {power(best["n"])}. \
At {power(large["n"])} it is {large["ratio_to_torch"]:.2f}.
"""


# --- docs/7_kernels.md


def steps() -> str:
    """Each kernel of the lesson at some sizes of float32, GPU time in microseconds."""
    described = {
        "torch.add(out)": "`torch.add(a, b, out=c)`",
        "plain kernel": "plain: one element at a time",
        "vector kernel": "vector: 16 bytes per thread",
        "unaligned kernel": "unaligned",
    }
    found, sizes = timings(), [2**k for k in (10, 20, 22, 26)]
    lines = [
        [text, *(microseconds(found[call, "float32", n]["median_us"]) for n in sizes)]
        for call, text in described.items()
    ]
    return table(["kernel", *map(power, sizes)], *lines)


def life() -> str:
    """Bytes a thread, speed, and the life of a thread that follows from them, at 2^30 elements."""
    resident = 132 * 2048  # threads that an H100 or H200 holds at once: multiprocessors x threads on each
    cards = [timings(), timings("h100-sweep")]
    lines = []
    for label, call, dtype, carried in (
        ("plain float16", "plain kernel", "float16", 6),
        ("plain float32", "plain kernel", "float32", 12),
        ("plain float64", "plain kernel", "float64", 24),
        ("add2 float32", OURS, "float32", 48),
    ):
        speeds = [found[call, dtype, 2**30]["gb_per_s"] for found in cards]
        cells = [f"{speed / 1e3:.2f} ({resident * carried / speed / 1e3:.2f})" for speed in speeds]
        lines.append([label, str(carried), *cells, f"{speeds[0] / speeds[1]:.2f}"])
    return table(["kernel", "bytes per thread", "H200: TB/s (life, us)", "H100", "H200 / H100"], *lines)


# --- docs/results/README.md


def ratios(*names: str, clock: str = "gpu") -> str:
    """The time over torch's, for each size and dtype."""
    found = {key[1:]: row for key, row in timings(*names, clock=clock).items() if key[0] == OURS}
    sizes = sorted({n for _, n in found if all((dtype, n) in found for dtype in DTYPES)})
    lines = [[power(n), *(f"{found[dtype, n]['ratio_to_torch']:.3f}" for dtype in DTYPES)] for n in sizes]
    return table(["n", *DTYPES], *lines)


def cpu_ratios() -> str:
    return ratios("cpu-2-threads", clock="host")


def cpu_call() -> str:
    """A call on tensors so small that only the call counts, on a CPU, one thread."""
    found = timings("cpu-1-thread", clock="host")
    lines = []
    for call, text in (
        ("torch.add(out)", "`torch.add(a, b, out=c)`"),
        (OURS, "`add2.torch_launch_add2(c, a, b, n)`"),
        ("pybind11", "the pybind11 binding's `torch_launch_add2`"),
    ):
        row = found[call, "float32", 16]
        lines.append([text, f"{row['median_us']:.2f}", f"{row['ratio_to_torch']:.2f}"])
    return table(["call, 16 elements of float32", "us", "ratio"], *lines)


# --- other pages


def first_run() -> str:
    """README.md: the output of time.py, by its own functions; folders, commands and the small sizes are left out."""
    content = load("h200-first-run")
    build = SimpleNamespace(**content["build"][0])
    build.library = f".../{build.library}"
    largest = max(row["n"] for row in content["results"])
    rows = [row for row in content["results"] if row["n"] == largest]
    lines = [f"building add2 with {build.compiler} for CUDA for 9.0a, and the CPU ..."]
    lines += ["  $ ... (the compilers' and the linker's commands)", cli.describe(content["environment"], [build])]
    lines += ["...", calls.table(rows, content["environment"]["peak_gb_per_s"]), calls.legend(rows)]
    return "\n".join(["```", *lines, "```"]) + "\n"


def headers() -> str:
    """docs/5_builds.md: seconds to compile each header."""
    rows = load("cpu-headers")["headers"]
    return table(["header", "seconds"], *([f"`{row['headers']}`", f"{row['seconds']:.1f}"] for row in rows))


def host_cost() -> str:
    """docs/12_gradients.md: the host's time for each call, without and with a gradient wanted."""
    found = {row["call"]: f"{row['median_us']:.2f}" for row in part("host_cost")}
    names = dict.fromkeys(name.removesuffix(", with grad") for name in found)
    lines = [[f"`{name}`", found.get(name, ""), found.get(f"{name}, with grad", "")] for name in names]
    return table(["call", "no gradient", "with gradient"], *lines)


def training() -> str:
    """docs/12_gradients.md: each way to run a step, in microseconds, with add2 and with torch's own add in one run."""
    lines = []
    for run in load("h200-training"):
        ways = run["ways"]
        way = "compiled" if ways["compile"] else "CUDA graph" if ways["cuda_graph"] else "eager"
        way += ", bfloat16" if run["settings"]["dtype"] == "bfloat16" else ""
        ours, torchs = (row["median_us_per_step"] for row in run["training"])
        lines.append([run["settings"]["model"], way, f"{ours:.0f}", f"{torchs:.0f}", f"{ours / torchs:.3f}"])
    lines.sort(key=lambda line: line[0], reverse=True)
    return table(["model", "step", "add2", "torch.add", "ratio"], *lines)


def processes() -> str:
    """docs/several-gpus.md: steps a second of the residual network by batch and number of GPUs."""
    found = {(run["settings"]["batch"], run["processes"]): run["training"][0] for run in load("h200-several-gpus")}
    lines = [
        [str(batch), str(gpus), f"{1e6 / row['median_us_per_step']:.0f}"]
        for (batch, gpus), row in sorted(found.items())
    ]
    return table(["batch", "GPUs", "steps/s"], *lines)


def ways() -> str:
    """docs/13_ways.md: the price of each way to make an operator."""
    found = {row["way"]: row for row in load("h200-ways")["ways"]}
    lines = []
    for way in ("torch.add", "torch.compile", "triton_op", "nvrtc", "jit", "setup", "cmake", "pybind11"):
        row = found[way]
        host = f"{row['us']:.1f} ({row['torch_us']:.1f})"
        lines.append([way, f"{row['first_s']:.2g}", host, f"{row['gb_per_s']:.0f}"])
    return table(["way", "first result, s", "us a call", "GB/s at 2^26"], *lines)


# --- pictures


def sweep():
    """docs/6_timing.md: GB/s and the ratio over the sizes."""
    from lab.bench import plots

    return plots.sweep({"environment": load(RUNS[0])["environment"], "results": list(timings().values())})


def curves():
    """docs/12_gradients.md: loss and accuracy of the residual network."""
    from lab.bench import plots

    return plots.training(next(run for run in load("h200-training") if run["settings"]["model"] == "residual"))


TABLES = {
    "study": study,
    "clocks": clocks,
    "lies": lies,
    "steps": steps,
    "life": life,
    "ratios": ratios,
    "cpu-call": cpu_call,
    "cpu-ratios": cpu_ratios,
    "first-run": first_run,
    "headers": headers,
    "host-cost": host_cost,
    "training": training,
    "processes": processes,
    "ways": ways,
}
PICTURES = {"h200-sweep.svg": sweep, "h200-training.svg": curves}
