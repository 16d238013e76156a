"""Memory traffic of some kernels, as lab/emulator counts it and as Nsight Compute counts it on a GPU.

python3 examples/profile/counts.py                      # what the emulator counts: needs no GPU
python3 examples/profile/counts.py --profile ncu.csv    # on a GPU: run the same launches under ncu
python3 examples/profile/counts.py --compare ncu.csv    # both numbers of each launch; exit status 1 if some differ
"""

import argparse
import contextlib
import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import cli, emulator, files, kernels

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).resolve().relative_to(ROOT)
MEASURED = ("examples/transpose", "kernel/add2_kernel.cu", "examples/reduction", "tests/emulator/counts.cu")
# Each count of the emulator, and ncu's metrics with the same meaning; "+": their sum. ncu computes `smsp__sass_` from
# the instructions that ran and the addresses that they had. The others are counters of the hardware: those of requests
# include instructions that no lane takes part in, the one of loaded sectors includes cp.async, and on a busy GPU those
# of wavefronts read up to 16% higher (docs/results/h200-transpose-ncu.json). The first that ncu knows is compared; if
# the last one differs from it, the record has that, too. For bank conflicts ncu 2025.3 knows only the hardware's.
LSU, SASS = "l1tex__t_sectors_pipe_lsu_mem_global_op", "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op"
DATA, CONFLICTS = "l1tex_data_pipe_lsu_wavefronts_mem_shared_op", "l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op"
METRICS = {
    "load_requests": ["smsp__sass_inst_executed_op_global_ld", "smsp__inst_executed_op_global_ld"],
    "load_sectors": [f"{SASS}_ld", f"{LSU}_ld"],
    "store_requests": ["smsp__sass_inst_executed_op_global_st", "smsp__inst_executed_op_global_st"],
    "store_sectors": [f"{SASS}_st", f"{LSU}_st"],
    "atomic_sectors": [f"{SASS}_atom+{SASS}_red", f"{LSU}_atom+{LSU}_red", f"{LSU}_red"],
    "copy_sectors": [f"{SASS}_ldgsts", f"{LSU}_ldgsts"],
    "shared_load_requests": ["smsp__sass_inst_executed_op_shared_ld", "smsp__inst_executed_op_shared_ld"],
    "shared_load_wavefronts": [f"smsp__sass_{DATA}_ld", f"{DATA.replace('_', '__', 1)}_ld"],
    "shared_load_bank_conflicts": [f"smsp__sass_{CONFLICTS}_ld", f"{CONFLICTS.replace('_', '__', 1)}_ld"],
    "shared_store_requests": ["smsp__sass_inst_executed_op_shared_st", "smsp__inst_executed_op_shared_st"],
    "shared_store_wavefronts": [f"smsp__sass_{DATA}_st", f"{DATA.replace('_', '__', 1)}_st"],
    "shared_store_bank_conflicts": [f"smsp__sass_{CONFLICTS}_st", f"{CONFLICTS.replace('_', '__', 1)}_st"],
}
RUNGS = ("one_each", "through_tile", "through_tile, padded", "four_each", "large_tile")
# The kernels of tests/emulator/counts.cu, by their numbers.
SMALL = (
    "every_second", "far_apart", "one_further", "gather", "broadcast", "structs_of_12", "vectors", "pairs", "doubles",
    "quads", "columns", "stencil", "scan", "some_lanes_per_turn", "loops_of_other_lengths", "calls", "copies",
    "atomics", "bytes", "rows",
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16)
ADD2_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}  # enum Add2Dtype


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def launches(load: Callable[..., kernels.Launchers]) -> Iterator[tuple[str, kernels.Launchers]]:
    """Launch each kernel once. Yields what was launched, and what launched it.

    Inputs are made on the CPU and copied, so that no kernel of torch runs.
    """
    run = load(ROOT / "examples" / "transpose" / "transpose.cu")
    for dtype in DTYPES:
        x = torch.randn(256, 512).to(dtype).to(run.device)
        for rung, name in enumerate(RUNGS, 1):
            y = torch.empty(512, 256, dtype=dtype, device=run.device)
            run.launch("launch_4_bytes" if dtype.itemsize == 4 else "launch_2_bytes", rung, y, x, *x.shape)
            yield f"transposition: {name}, {name_of(dtype)}", run

    run = load(ROOT / "kernel" / "add2_kernel.cu", f"-I{ROOT}/include")
    for dtype, number in ADD2_DTYPES.items():
        a, b = (torch.randn(10001).to(dtype).to(run.device) for _ in range(2))
        c = torch.empty(10000, dtype=dtype, device=run.device)
        for kernel, name in enumerate(("plain", "vector", "unaligned")):
            first = 1 if name == "unaligned" else 0  # a view, as x[1:]
            run.launch("launch_add2_cuda_kernel", kernel, c, a[first:], b[first:], 10000, number)
            yield f"add2: {name}, {name_of(dtype)}", run

    x = torch.randn(7, 1000).to(run.device)
    run = load(ROOT / "examples" / "reduction" / "row_sum.cu")
    run.launch("launch_row_sum", torch.empty(7, device=run.device), x, *x.shape)
    yield "row_sum", run
    run = load(ROOT / "examples" / "reduction" / "softmax.cu")
    run.launch("launch_softmax", torch.empty_like(x), x, *x.shape)
    yield "softmax", run

    run = load(ROOT / "tests" / "emulator" / "counts.cu")
    x, y = torch.rand(8192).to(run.device), torch.zeros(4096).to(run.device)
    for number, name in enumerate(SMALL):
        run.launch("launch_counts", number, y, x)
        yield name, run


def emulate() -> Iterator[dict]:
    """A row for each launch, run in the emulator: what was launched, its kernel, its counts."""

    def load(source: Path, *flags: str) -> kernels.InEmulator:
        return kernels.InEmulator(emulator.load(source, flags))

    for name, run in launches(load):
        (launch,) = run.report.launches
        yield {"launch": name, "kernel": function(launch.kernel)} | {each: getattr(launch, each) for each in METRICS}


def function(kernel: str) -> str:
    """A kernel's name without namespaces, template arguments and parameters."""
    kernel = re.sub(r"^void |<unnamed>::|\(anonymous namespace\)::", "", kernel)
    return re.split(r"[<(]", kernel)[0].split("::")[-1]


def launch_all() -> None:
    """Launch each kernel on the GPU."""
    if not torch.cuda.is_available():
        sys.exit("counts.py --once: torch sees no GPU")
    for _ in launches(kernels.load):
        torch.cuda.synchronize()


def profile(path: Path) -> None:
    """Run launch_all() under ncu. Writes a line with the machine, and ncu's table."""
    ncu = shutil.which("ncu")
    if not (ncu and torch.cuda.is_available()):
        sys.exit("counts.py --profile: it needs a GPU that torch sees, and Nsight Compute (ncu) on the PATH")
    wanted = {metric for each in METRICS.values() for text in each for metric in text.split("+")}
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True).stdout
    known = sorted(wanted & set(re.findall(r"^\w+", listed, re.MULTILINE))) or sorted(wanted)
    print(f"ncu knows {len(known)} of {len(wanted)} metrics", flush=True)
    metrics = ",".join(f"{metric}.sum" for metric in known)
    command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", metrics]
    done = subprocess.run([*command, sys.executable, __file__, "--once"], capture_output=True, text=True)
    version = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1]
    machine = cli.environment(torch.device("cuda"), places=MEASURED) | {"ncu": version, "metrics": ",".join(known)}
    path.write_text(f"# {json.dumps(machine, default=str)}\n{done.stdout}")
    if done.returncode or '"Metric Name"' not in done.stdout:
        sys.exit(f"ncu failed (status {done.returncode}); its output is in {path}\n{done.stderr[-2000:]}")
    print(f"{path} is written")


def read_ncu(path: Path) -> tuple[dict, list[dict]]:
    """The machine, and for each launch its kernel and its metrics."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"{path} cannot be read: {error}")
    machine = json.loads(text.splitlines()[0][1:]) if text.startswith("#") else {}
    begin = text.find('"ID"')
    if begin < 0:
        sys.exit(f"{path} has no table of ncu --csv")
    found: dict[str, dict] = {}
    for row in csv.DictReader(io.StringIO(text[begin:])):
        launch = found.setdefault(row["ID"], {"kernel": function(row["Kernel Name"])})
        with contextlib.suppress(ValueError):  # n/a
            launch[row["Metric Name"].removesuffix(".sum")] = int(float(row["Metric Value"].replace(",", "")))
    return machine, list(found.values())


def values_of(launch: dict, count: str) -> list[int]:
    """What ncu says of a count, best first; without the metrics that it did not measure."""
    parts = [[launch.get(metric) for metric in text.split("+")] for text in METRICS[count]]
    return [sum(each) for each in parts if None not in each]


def compare(path: Path) -> Iterator[dict]:
    """A row for each launch: its counts by the emulator and by ncu, and the names of those that differ."""
    _, measured = read_ncu(path)
    ours = list(emulate())
    names = {row["kernel"] for row in ours}
    measured = [launch for launch in measured if launch["kernel"] in names]
    if [row["kernel"] for row in ours] != [launch["kernel"] for launch in measured]:
        sys.exit(f"{path} has other launches than this program: run --profile again")
    for row, launch in zip(ours, measured, strict=True):
        by_ncu = {count: values for count in METRICS if (values := values_of(launch, count))}
        first = {count: values[0] for count, values in by_ncu.items()}
        yield {
            "launch": row["launch"],
            "kernel": row["kernel"],
            "emulator": {count: row[count] for count in METRICS},
            "ncu": first,
            "hardware": {count: values[-1] for count, values in by_ncu.items() if values[-1] != first[count]},
            "different": [count for count in first if first[count] != row[count]],
        }


def show(row: dict, ncu: dict | None = None) -> None:
    """Print the counts of a launch that are not 0; where ncu has another number, that, too."""
    said = []
    for count in METRICS:
        other = ncu.get(count) if ncu else None
        if row[count] or other:
            differs = f" (ncu: {other:,})" if other is not None and other != row[count] else ""
            said.append(f"{count} {row[count]:,}{differs}")
    print(f"{row['launch']}\n    " + ", ".join(said), flush=True)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--once", action="store_true", help="launch each kernel on the GPU: for ncu")
    which.add_argument("--profile", type=files.target, metavar="CSV", help="run --once under ncu, and write its table")
    which.add_argument("--compare", type=Path, metavar="CSV", help="compare the emulator with such a table")
    parser.add_argument("--json", type=files.target, metavar="FILE", help="write the counts")
    args = parser.parse_args()
    if args.once:
        launch_all()
    elif args.profile:
        profile(args.profile)
    else:
        machine, rows = cli.environment(torch.device("cpu"), places=MEASURED), []
        if args.compare:
            machine, rows = read_ncu(args.compare)[0], list(compare(args.compare))
            machine["command"] = f"python3 {PROGRAM} --profile CSV; python3 {PROGRAM} --compare CSV --json FILE"
        else:
            rows = list(emulate())
        for row in rows:
            show({"launch": row["launch"]} | row.get("emulator", row), row.get("ncu"))
        if args.json:
            files.write(args.json, files.to_json({"environment": machine, "results": rows}))
        differ = [row["launch"] for row in rows if row.get("different")]
        if args.compare:
            sys.exit(f"{len(differ)} of {len(rows)} launches differ: {'; '.join(differ)}" if differ else 0)


if __name__ == "__main__":
    main()
