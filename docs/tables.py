"""The tables of the pages, a function for each: from the measurements in docs/results to Markdown.

TABLES has their names.
"""

import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from records import load, load_runs

from lab.bench import calls
from lab.bench.sync_study import CASES

# Files of one machine that time.py wrote. Where two have the same figure, the last one counts.
RUNS = ("h200-float32", "h200-float64", "h200-float16", "h200-bfloat16", "h200-clocks")
OURS = "torch_launch_add2"


def us(microseconds: float) -> str:
    return f"{microseconds:.{2 if microseconds < 100 else 1 if microseconds < 1000 else 0}f}"


def timings(*names: str, clock: str = "gpu") -> dict[tuple, dict]:
    """The rows of these files by (call, dtype, n)."""
    found, is_host = {}, not clock.startswith("gpu")
    for row in (row for name in names or RUNS for row in load(name, is_host=is_host) if row["clock"] == clock):
        shown = us(row["median_us"]) + (" ~" if row.get("noisy") else "")
        found[row["call"], row["dtype"], row["n"]] = row | {"size": calls.power(row["n"]), "shown": shown}
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def listed(rows: Iterable[dict], columns: dict[str, str]) -> str:
    """A table with a line for each row. columns: their names, and the format of what stands there."""
    return table(columns, ([text.format_map(row) for text in columns.values()] for row in rows))


def pivot(rows: Iterable[dict], corner: str, line: str, column: str, cell: str, columns: Iterable[str] = ()) -> str:
    """A table with a cell for each row, in a line and a column. These three are formats; columns may be given."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        lines.setdefault(line.format_map(row), {})[column.format_map(row)] = cell.format_map(row)
    columns = list(dict.fromkeys([*columns, *(name for texts in lines.values() for name in texts)]))
    return table([corner, *columns], ([name, *(texts.get(x, "") for x in columns)] for name, texts in lines.items()))


OTHERS = {  # of h200-others.json: what was measured
    "": "on an H200",
    "out": "host time, writing into `c`",
    "new": "host time, returning a tensor",
    "grad": "the same, with a gradient",
    "gpu": "GPU time, 2^26 elements",
    "build setup": "build with `setup.py`",
    "build jit": "build with jit",
}


def others() -> str:
    """Times over that of torch's own call, builds in seconds."""
    operators = {"torch": "torch", "add2": "add2"}
    operators |= {"extension-cpp": "[extension-cpp][official]", "articles": "[articles][articles]"}
    found = {}
    for row in load("h200-others", is_host=True):
        text = f"{row['seconds']:.1f} s" if "seconds" in row else f"{row['ratio_to_torch']:.2f}"
        found[row["what"], row["operator"]] = text
    head, *lines = ([text, *(found.get((what, name), "-") for name in operators)] for what, text in OTHERS.items())
    return table([head[0], *operators.values()], lines)


def first_run() -> str:
    """The end of time.py's output: its largest size, without the legend."""
    rows = [row for row in load("h200-first-run") if row["n"] == 2**26]
    return "```\n" + calls.table(rows, load("h200-first-run", "environment")["peak_gb_per_s"]).strip("\n") + "\n```\n"


def clocks() -> str:
    """One call by each of the clocks, at all sizes that were timed by all."""
    order = ("host", "events", "gpu", "gpu warm")
    rows = [row for clock in order for row in timings("h200-clocks", clock=clock).values()]
    rows = [row for row in rows if (row["call"], row["dtype"]) == (OURS, "float32") and row["n"] < 2**26]
    for row in rows:
        row["reads"] = calls.CLOCKS[row["clock"]][1]
    return pivot(rows, "clock", "`{clock}`: {reads}", "{size}", "{shown}", ("2^10", "2^14", "2^22"))


def study() -> str:
    """The study of add2, where the kernel is longer than its launch."""
    rows = [row for row in load(RUNS[0], "sync_study", is_host=True) if (row["call"], row["n"]) == (OURS, 2**26)]
    cases = [(row, *CASES[row["before"], row["after"]]) for row in rows]
    lines = [[name, us(row["first_us"]), us(row["median_us"]), reads] for row, name, reads in cases]
    return table(["synchronize", "first call", "median", "what the clock reads"], lines)


def steps() -> str:
    """Each kernel of the lesson at some sizes of float32, GPU time in microseconds."""
    shown = ("torch.add(out)", "plain kernel", "vector kernel", "unaligned kernel")
    rows = [timings()[call, "float32", 2**k] for call in shown for k in (10, 20, 22, 26)]
    return pivot(rows, "call", "{call}", "{size}", "{shown}")


def life() -> str:
    """Bytes per thread, speed, and the life of a thread that follows from them, at 2^30 elements."""
    resident = 132 * 2048  # threads that an H200 holds at once: multiprocessors x threads on each
    found, lines = timings(), []
    for name, carried in {"plain float16": 6, "plain float32": 12, "plain float64": 24, "add2 float32": 48}.items():
        kernel, dtype = name.split()
        speed = found[OURS if kernel == "add2" else "plain kernel", dtype, 2**30]["gb_per_s"]
        lines.append([name, str(carried), f"{speed / 1e3:.2f}", f"{resident * carried / speed / 1e3:.2f}"])
    return table(["kernel", "bytes per thread", "TB/s", "life, us"], lines)


def ratios(*names: str, clock: str = "gpu") -> str:
    """The time over torch's, for each size and dtype."""
    rows = sorted((row for row in timings(*names, clock=clock).values() if row["call"] == OURS), key=lambda x: x["n"])
    return pivot(rows, "n", "{size}", "{dtype}", "{ratio_to_torch:.3f}", calls.DTYPES)


def host_cost() -> str:
    """The host's time for each call, without and with a gradient wanted."""
    rows = load("h200-host-cost", "host_cost", is_host=True)
    for row in rows:
        row["name"], grad, _ = row["call"].partition(", with grad")
        row["column"] = "with gradient" if grad else "no gradient"
    return pivot(rows, "call", "`{name}`", "{column}", "{median_us:.2f}")


def training() -> str:
    """Microseconds of a step, with add2 and with torch's own add in one run."""
    rows = load_runs("h200-training")
    for row in rows:
        row["way"] = "compiled" if row["ways"]["compile"] else "CUDA graph" if row["ways"]["cuda_graph"] else "eager"
        row["way"] += ", bfloat16" * (row["settings"]["dtype"] == "bfloat16")
        row["ours"], row["torchs"] = (each["median_us_per_step"] for each in row["training"])
        row["ratio"] = row["ours"] / row["torchs"]
    columns = {"model": "{settings[model]}", "step": "{way}", "add2": "{ours:.0f}", "torch.add": "{torchs:.0f}"}
    return listed(rows, columns | {"ratio": "{ratio:.3f}"})


def rms_norm() -> str:
    """Microseconds of a few shapes: the best of the others, and ours."""
    shapes = [(1024, 1), (1024, 16384), (4096, 2048), (16384, 16384), (65536, 64), (65536, 2048)]
    rows = [row for row in load("h200-add-rms-norm") if (row["width"], row["rows"]) in [*shapes, (131072, 64)]]
    for row in rows:
        row["best"] = min(row[name] for name in ("torch", "torch.compile", "liger", "quack") if name in row)
    return pivot(rows, "rows x width", "{rows} x {width}", "{pass}", "{best}, {add_rms_norm} ({of_peak:.0%})")


def matmul() -> str:
    """Speed of each rung at 4096 cubed, and what a profiler counts there."""
    found = {row["rung"]: row for row in load("h200-matmul") if row["m"] == row["n"] == row["k"] == 4096}
    rows = [row | found[row["rung"]] for row in load("h200-matmul-ncu")]
    for number, row in enumerate(rows[:-1], 1):
        row["rung"] = f"{number}. {row['rung']}"
    for row in rows:
        row["gb"] = f"{row['l2_to_sm_bytes'] / 1e9:.2g}"
    columns = {"rung": "{rung}", "TFLOP/s": "{tflops}", "of torch": "{of_torch:.3f}"}
    return listed(rows, columns | {"tensor cores": "{tensor_percent:.0f}%", "GB from L2": "{gb}"})


def matmul_sizes() -> str:
    """Speed of the top rung over torch's where it loses."""
    rows = [row for row in load("h200-matmul") if row["rung"].startswith("persistent") and row["of_torch"] < 0.95]
    return listed(rows, {"M, N, K": "{m}, {n}, {k}", "of torch": "{of_torch:.2f}"})


def int4(name: str, corner: str, line: str, cell: str) -> str:
    """Microseconds for some numbers of rows of x."""
    rows = [row for row in load(name) if row["batch"] in (1, 16, 64, 128, 256, 1024)]
    rows.sort(key=lambda row: row.get("rung") == "int4_linear")  # the operator comes after all rungs
    for row in rows:
        row |= {"linear": row.get("F.linear"), "count": "1 row" if row["batch"] == 1 else f"{row['batch']} rows"}
    return pivot(rows, corner, line, "{count}", cell)


def int4_ratios() -> str:
    """Our time over that of each contestant, from the best size to the worst."""
    found: dict[tuple[str, str], list[float]] = {}
    counts = {64: "1 to 64", 128: "65 to 128", 300: "200 to 300", 2048: "512 to 2048"}
    for row in sorted(load("h200-int4") + load("h200-int4-between"), key=lambda row: row["batch"]):
        count = next(name for most, name in counts.items() if row["batch"] <= most)
        for other in sorted(row.keys() - {"n", "k", "batch", "floor_us", "of_best", "int4_linear"}):
            found.setdefault((count, other), []).append(row["int4_linear"] / row[other])
    rows = [{"rows": x, "other": y, "low": min(ratios), "high": max(ratios)} for (x, y), ratios in found.items()]
    return pivot(rows, "rows of x", "{rows}", "over {other}", "{low:.2f} to {high:.2f}")


def int4_between() -> str:
    """Our time over the better of F.linear and Humming, at sizes to which the plan was not fitted."""
    found: dict[int, list[float]] = {}
    for row in load("h200-int4-between"):
        best = min(row[other] for other in ("F.linear", "Humming") if other in row)
        found.setdefault(row["batch"], []).append(row["int4_linear"] / best)
    mean = statistics.geometric_mean
    rows = [{"rows": n, "count": len(x), "mean": mean(x), "worst": max(x)} for n, x in sorted(found.items())]
    return listed(rows, {"rows of x": "{rows}", "sizes": "{count}", "mean": "{mean:.2f}", "worst": "{worst:.2f}"})


def decode_attention() -> str:
    """Microseconds of torch's fastest attention, FlashInfer's, and ours, for some of the sizes with d 128."""
    shown = "1 x 512, 32/8", "1 x 4096, 32/8", "64 x 512, 32/8", "64 x 4096, 32/8", "8 x 4096, 32/32", "8 x 4096, 16/1"
    rows = [row for row in load("h200-decode-attention") if row.get("d") == 128]
    for row in rows:
        row["size"] = "{batch} x {tokens}, {heads}/{key_heads}".format_map(row)
        for end in ("exact", "mask"):
            row[end] = min(us for name, us in row.items() if name.endswith(f", {end}"))
        row["infer"] = min(us for name, us in row.items() if name.startswith("FlashInfer"))
    columns = {"batch x tokens, heads": "{size}", "floor": "{floor_us}", "torch, exact": "{exact}", "mask": "{mask}"}
    columns |= {"FlashInfer": "{infer}", "attend": "{attend}", "int8": "{attend, int8}", "of the best": "{of_best:.2f}"}
    return listed([row for row in rows if row["size"] in shown], columns)


def attention_errors() -> str:
    """Relative error of attention: with normal data, and with two columns of 128 ten times as large."""
    found = [row for row in load("h200-decode-attention") if row.get("what") == "error"]
    names = "torch, bfloat16", "attend, bfloat16", "attend, int8"
    lines = ([name, *(f"{row[name]:.2%}" for row in found)] for name in names)
    return table(["", "all columns alike", "2 columns 10 times as large"], lines)


PRIZE = [
    "![Tokens per second of a Llama: transformers, torch.compile in bf16 and with torch's 4 bits, "
    "ours in bf16 and 4 bits]"
    "(docs/results/h200-llama.svg)\n\n"
    "Our operators (green) write {} tokens per second for one user, with random weights of 4 bits in all layers\n"
    "({} with the last layer in bf16); with the step in one kernel it is {}. `torch.compile` writes {} in bf16,\n"
    "and {} with torch's own 4-bit kernel in all layers.\n",
    "![Llama 每秒生成的 token 数：transformers、torch.compile 的 bf16 和 torch 自带的 4 bit，以及我们的 bf16 和 4 bit]"
    "(docs/results/h200-llama.svg)\n\n"
    "我们的算子（绿色）为一个用户每秒生成 {} 个 token：权重是随机的，所有层都是 4 bit（最后一层用 bf16 时为 {}）；\n"
    "整个 step 合成一个 kernel 时为 {}。\n"
    "`torch.compile` 用 bf16 时为 {}，所有层都用 torch 自带的 4 bit kernel 时为 {}。\n",
]


def llama_prize(language: int = 0) -> str:
    """Tokens per second for one text after 512 tokens."""
    rows = [row for row in load("h200-llama") if (row.get("batch"), row.get("context")) == (1, 512)]
    found = {row["who"]: f"{row['tokens_per_s']:.0f}" for row in rows}
    shown = [
        "ours, 4 bits, also the last layer",
        "ours, 4 bits",
        "ours, 4 bits, one kernel",
        "torch.compile, bf16",
        "torch.compile, torch's 4 bits",
    ]
    return PRIZE[language].format(*map(found.get, shown))


def llama() -> str:
    """Tokens per second of each contestant, for each batch and context."""
    points = [(1, 512), (1, 4096), (1, 32768), (2, 512), (2, 4096), (16, 1024), (64, 1024), (0, 2048)]
    columns = {point: "{} x {}".format(*point) for point in points}
    columns |= {(1, 32768): "1 x 32768, int8", (0, 2048): "prompt of 2048, ms"}
    rows = [row for row in load("h200-llama") if "batch" in row]
    for row in rows:
        row |= {"column": columns[row["batch"], row["context"]], "speed": row["tokens_per_s" if row["batch"] else "ms"]}
    return pivot(rows, "batch x context", "{who}", "{column}", "{speed:.0f}", columns.values())


def llama_steps() -> str:
    """Milliseconds of a step on each rung, and what the rung saves."""
    rows = load("h200-llama-steps")
    for before, row in zip([None, *rows], rows, strict=False):
        row["saved"] = f"{before['ms'] - row['ms']:.2f}" if before else ""
    columns = {"rung": "{step}", "ms per token": "{ms:.2f}", "saved": "{saved}"}
    return listed(rows, columns | {"tokens per second": "{tokens_per_s:.0f}"})


WAITS = {"long_scoreboard": "memory", "wait": "arithmetic", "math_pipe_throttle": "arithmetic", "barrier": "a barrier"}
WAITS |= {"short_scoreboard": "shared memory", "no_instruction": "instructions", "imc_miss": "constants"}


def longest_waits(shares: dict[str, float]) -> str:
    """The two longest ones by their names in WAITS. Other reasons are no wait: not_selected, for example, is ready."""
    found: dict[str, float] = {}
    for reason, share in shares.items():
        if reason in WAITS:
            found[WAITS[reason]] = found.get(WAITS[reason], 0) + share
    return ", ".join(f"{reason} {share:.0%}" for reason, share in sorted(found.items(), key=lambda x: -x[1])[:2])


def llama_kernels() -> str:
    """Where the time of a step goes: what each part reads, and what its warps wait for."""
    kernels, peak = load("h200-llama-kernels")[0]["kernels"], load("h200-llama-kernels", "environment")["peak_gb_per_s"]
    waits = {row["part"]: longest_waits(row["waits"]) for row in load("h200-llama-ncu")}
    rows = [row | {"waits": waits[row["part"]]} for row in kernels if row["part"] in waits]
    for part, some in (("torch's", [x for x in kernels if x["part"] not in waits]), ("all", kernels)):
        rows.append({"part": part, "waits": ""} | {x: sum(row[x] for row in some) for x in ("calls", "us", "bytes")})
    for row in rows:
        row["mb"] = f"{row['bytes'] / 1e6:.0f}" if row["bytes"] else ""
        row["share"] = f"{row['bytes'] / row['us'] / 1e3 / peak:.0%}" if row["bytes"] else ""
    columns = {"part": "{part}", "calls": "{calls}", "us": "{us:.0f}", "MB": "{mb}", "of 4.8 TB/s": "{share}"}
    return listed(rows, columns | {"its warps wait for": "{waits}"})


LAYER = {"norm": "norm", "q, k, v": "product q, k, v", "attend": "`step`"}
LAYER |= {"o": "product o", "norm ": "norm", "gate, up": "product gate, up", "down": "product down"}


def llama_layer() -> str:
    """The kernels of one layer in their order: what a call takes, and reads."""
    found = {row["part"]: row for row in load("h200-llama-kernels")[0]["kernels"]}
    rows = []
    for part, shown in LAYER.items():
        row = found[part.strip()]
        if row["calls"] < found["o"]["calls"]:  # only the first norm of all is a kernel
            continue
        rows.append({"kernel": shown, "us": row["us"] / row["calls"], "mb": row["bytes"] / row["calls"] / 1e6})
    rows.append({"kernel": "together"} | {key: sum(row[key] for row in rows) for key in ("us", "mb")})
    shown_rows = ([row["kernel"], f"{row['us']:.1f}", f"{row['mb']:.1f}" if row["mb"] else ""] for row in rows)
    return table(["kernel", "us", "MB"], shown_rows)


def llama_account() -> str:
    """Why a step takes longer than its bytes. A product's time is taken for a start and bytes at some speed."""
    kernels, peak = load("h200-llama-kernels")[0]["kernels"], load("h200-llama-kernels", "environment")["peak_gb_per_s"]
    found = {row["part"]: row for row in kernels}
    products = [found[part] for part in ("q, k, v", "o", "gate, up", "down", "last layer")]
    calls, whole, read = (sum(row[what] for row in products) for what in ("calls", "us", "bytes"))
    size, us = ({part: row[what] / row["calls"] for part, row in found.items()} for what in ("bytes", "us"))
    rate = (size["gate, up"] - size["o"]) / (us["gate, up"] - us["o"])
    start, floor = us["o"] - size["o"] / rate, read / peak / 1e3
    parts = {"the products' bytes at 4.8 TB/s": floor, f"{calls} products start, {start:.1f} us each": calls * start}
    late = f"extra time, as bytes arrive at only about {rate / 1e6:.1f} TB/s"
    parts[late] = whole - floor - calls * start
    parts["the other kernels"] = sum(row["us"] for row in kernels) - whole
    small, large = ((size[part] / 1e6, us[part]) for part in ("o", "gate, up"))
    speed = f"{rate / 1e6:.2f} TB/s"
    worked = f"`o` reads {small[0]:.2f} MB in {small[1]:.2f} us, `gate, up` {large[0]:.2f} MB in {large[1]:.2f} us. So "
    worked += f"the speed is ({large[0]:.2f} - {small[0]:.2f}) MB / ({large[1]:.2f} - {small[1]:.2f}) us = {speed}, "
    worked += f"and the start {small[1]:.2f} us - {small[0]:.2f} MB / {speed} = {start:.2f} us. "
    expected = start + size["last layer"] / rate
    worked += (
        f"The last layer would then take {expected:.0f} us; it takes {us['last layer']:.0f}: its bytes arrive faster."
    )
    return table(["of a step", "us"], ([part, f"{each:.0f}"] for part, each in parts.items())) + f"\n{worked}\n"


def ways() -> str:
    """What each way takes to install, and its price where it was measured."""
    measured = {row["way"]: row for row in load("h200-ways", "ways", is_host=True)}
    rows = [row for row in load("ways-packages", "packages") if not row["link"].startswith("http")]  # has an example
    for row in rows:
        row |= {"first": "-", "call": "-"}
        if found := measured.get(row["way"]):
            row |= {"first": f"{found['first_s']:.2g}", "call": f"{found['us']:.0f} ({found['torch_us']:.1f})"}
    columns = {"way": "[{way}]({link})", "licence": "{licence}", "to install": "{to_install}"}
    columns |= {"compiles without a GPU": "{without_gpu}", "from C++, ahead of time": "{from_cpp}"}
    return listed(rows, columns | {"first result, s": "{first}", "us per call": "{call}"})


def starter() -> str:
    """Microseconds of the starter's two kernels, and of the same by torch."""
    rows = load("h200-starter")
    for row in rows:
        row["size"] = calls.power(row["n"])
    columns = {"float32": "{pass}, {size}", "torch": "{torch}", "`torch.compile`": "{compiled}", "starter": "{ours}"}
    return listed(rows, columns | {"GB/s": "{gb_per_s}", "of peak": "{of_peak:.0%}"})


def layers() -> str:
    """The host's price of each layer between Python and C++."""
    rows = load("h200-ways", "host_cost", is_host=True)
    lines = [[row["call"], *(f"{row[key]:.2f}" if key in row else "" for key in ("us", "grad_us"))] for row in rows]
    return table(["the same C++ function, as", "no gradient", "with gradient"], lines)


def emulator() -> str:
    """The five transpositions: each count by the emulator and by ncu."""
    counts = {"load_sectors": "sectors loaded", "store_sectors": "stored", "shared_load_bank_conflicts": "conflicts"}
    head = [text for name in counts.values() for text in (name, "ncu")]
    rows = []
    for row in load("h200-emulator-ncu"):
        kind, _, name = row["launch"].partition(": ")
        if kind == "transposition":
            rows.append([name, *(f"{row[by][count]:,}" for count in counts for by in ("emulator", "ncu"))])
    return table(["kernel", *head], rows)


def emulator_differences() -> str:
    """All counts of the emulator that are not those of ncu."""
    found = [(row, count) for row in load("h200-emulator-ncu") for count in row["different"]]
    rows = (
        [row["launch"], count.replace("_", " "), *(f"{row[by][count]}" for by in ("emulator", "ncu"))]
        for row, count in found
    )
    return table(["launch", "count", "emulator", "ncu"], rows)


def referee() -> str:
    """What the referee found in operators of other packages."""
    rows = load("cpu-referee", "findings")
    for row in rows:
        row["operator"] = row["operator"].partition("::")[2]
        row["how"] = "silent" if row["is_silent"] else "crash"
        row["opcheck"] = "yes" if row["is_seen_by_opcheck"] else "no"
    columns = {"package": "{package}", "operator": "`{operator}`", "check": "`{check}`", "finding": "{finding}"}
    return listed(rows, columns | {"how": "{how}", "opcheck": "{opcheck}", "note": "{note}"})


def layers_cpu() -> str:
    """The same on a CPU, with two versions of torch: without a gradient, and with one."""
    found: dict[str, list[str]] = {}
    runs = load_runs("cpu-ways")
    names = [run["environment"]["torch"].partition("+")[0] for run in runs]
    for number, run in enumerate(runs):
        for row in run["host_cost"]:
            cells = found.setdefault(row["call"], [""] * 2 * len(runs))
            cells[2 * number : 2 * number + 2] = [f"{row[key]:.1f}" if key in row else "" for key in ("us", "grad_us")]
    head = [text for name in names for text in (f"torch {name}", "with gradient")]
    return table(["the same C++ function, as", *head], ([call, *cells] for call, cells in found.items()))


def ports() -> str:
    """What the two ports gain and cost, before and after."""
    rows = load("cpu-ports", "ports", is_host=True)
    lines = {
        "build, processor time": [f"{row['build_s']:.0f} s" for row in rows],
        "library, with debug symbols": [f"{row['library_bytes'] / 1e6:.1f} MB" for row in rows],
        "`torch.compile(fullgraph=True)`": ["works" if row["compiles"] else "refused" for row in rows],
        "host time of a call, over that of `torch.add`": [f"{row['us'] / row['torch_add_us']:.1f}" for row in rows],
        "the same, with a gradient": [f"{row['grad_us'] / row['torch_add_grad_us']:.1f}" for row in rows],
    }
    head = [f"`{row['port']}`, {row['version']}" for row in rows]
    return table(["", *head], ([name, *cells] for name, cells in lines.items()))


FUNCTIONS = (first_run, clocks, study, steps, life, others, ratios, host_cost, training, ways, layers, rms_norm, matmul)
FUNCTIONS += (matmul_sizes, int4_ratios, int4_between, decode_attention, attention_errors, starter, emulator)
FUNCTIONS += (emulator_differences, referee, layers_cpu, ports)
FUNCTIONS += (llama_prize, llama, llama_steps, llama_kernels, llama_layer, llama_account)
TABLES = {function.__name__.replace("_", "-"): function for function in FUNCTIONS}
TABLES |= {  # those that one call makes
    "llama-prize-zh": lambda: llama_prize(1),
    "cpu-ratios": lambda: ratios("cpu-sweep", clock="host"),
    "headers": lambda: listed(load("cpu-headers", "headers"), {"header": "`{headers}`", "seconds": "{seconds:.1f}"}),
    "rms-norm-steps": lambda: pivot(load("h200-add-rms-norm-steps"), "rung", "{rung}", "{rows} x {width}", "{us}"),
    "transpose": lambda: pivot(
        load("h200-transpose"), "kernel", "{kernel}", "{dtype}", "{gb_per_s:.0f} ({of_copy:.2f})"
    ),
    "int4-linear": lambda: int4("h200-int4", "N x K", "{n} x {k}", "{int4_linear}, {linear}"),
    "int4-linear-steps": lambda: int4("h200-int4-steps", "rung", "{rung}", "{us} ({of_int4_linear:.2f})"),
    "decode-attention-steps": lambda: pivot(
        load("h200-decode-attention-steps"), "rung", "{rung}", "{batch} x {tokens}", "{us} ({of_peak:.1%})"
    ),
    "attention-joins": lambda: pivot(
        (row for row in load("h200-decode-attention-joins") if row["capacity"] == 4096),
        "join",
        "{join}; {plan}",
        "{tokens} tokens",
        "{chain_us:.1f} ({alone_us:.2f})",
    ),
}
