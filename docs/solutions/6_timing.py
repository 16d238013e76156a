"""Solutions of docs/6_timing.md."""

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from workshop import copy_of_project, edit, main, need_gpus, run, show

from lab import build
from lab.bench import sync_study


def exercise_1():
    """A clock that does not wait for the kernel reads more TB/s than any memory has."""
    need_gpus()
    a, b = torch.ones(2, 1 << 26, device="cuda")
    c = torch.add(a, b)
    torch.add(a, b, out=c)  # the first call of its kind takes longer
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.add(a, b, out=c)
    seconds = time.perf_counter() - start
    print(f"   {seconds * 1e6:.1f} us, {3 * c.nbytes / seconds / 1e12:.0f} TB/s")


def exercise_2():
    """On a CPU a call has finished when it returns: the four agree."""
    show(run("time.py", "--sync-study", "--device", "cpu"), "before", "after", "neither")


def exercise_3():
    """A product of matrices before the first event changes no time between the events."""
    need_gpus()
    with copy_of_project() as copy:
        arguments = ("time.py", "--clocks", "--sizes", "2^26")
        show(run(*arguments, folder=copy), "call  ", "torch.add(out)", "torch_launch_add2")
        edit(
            copy / "lab" / "bench" / "clock.py",
            "        start.record()\n",
            "        torch.mm(*torch.ones(2, 4096, 4096, device='cuda'))\n        start.record()\n",
        )
        show(run(*arguments, folder=copy), "call  ", "torch.add(out)", "torch_launch_add2")


def trace(call, device, file):
    with torch.profiler.profile() as profiler:
        for (before, after), (name, _) in sync_study.CASES.items():
            with torch.profiler.record_function(f"synchronize {name}"):
                sync_study.samples(call, device, before, after)
    profiler.export_chrome_trace(file)


def exercise_4():
    """A trace of the four cases, each with its twenty calls."""
    build.load("jit")
    n, device = 1 << 24, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    c, a, b = torch.ones(3, n, device=device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        trace(partial(torch.ops.add2.torch_launch_add2, c, a, b, n), device, str(file))
        events = json.loads(file.read_text())["traceEvents"]
    spans = [event for event in events if event.get("cat") in ("user_annotation", "cpu_op")]
    calls = [event["ts"] for event in spans if event["name"] == "add2::torch_launch_add2"]
    for name, _ in sync_study.CASES.values():
        (case,) = (event for event in spans if event["name"] == f"synchronize {name}")
        inside = sum(case["ts"] <= start <= case["ts"] + case["dur"] for start in calls)
        print(f"   synchronize {name}: {inside} calls")
        assert inside == 20


if __name__ == "__main__":
    sys.exit(main())
