"""Solutions of docs/8_timing.md."""

import json
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from workshop import main, need_gpu

from lab import build
from lab.bench import sync_study


def exercise_1():
    """A clock that does not wait for the kernel reads more TB/s than any memory has."""
    need_gpu()
    a, b = torch.ones(2, 1 << 26, device="cuda")
    c = torch.add(a, b)
    torch.add(a, b, out=c)  # the first call of its kind takes longer
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.add(a, b, out=c)
    seconds = time.perf_counter() - start
    print(f"   {seconds * 1e6:.1f} us, {3 * c.nbytes / seconds / 1e12:.0f} TB/s")


def trace(call, device, file):
    with torch.profiler.profile() as profiler:
        for (before, after), (name, _) in sync_study.CASES.items():
            with torch.profiler.record_function(f"synchronize {name}"):
                sync_study.samples(call, device, before, after)
    profiler.export_chrome_trace(file)


def exercise_3():
    """A trace of the four cases, each with its twenty calls."""
    build.load("jit")
    n, device = 1 << 20, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    c, a, b = torch.ones(3, n, device=device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        trace(partial(torch.ops.add2.torch_launch_add2, c, a, b, n), device, str(file))
        events = json.loads(file.read_text())["traceEvents"]
    calls = [event for event in events if event["name"] == "add2::torch_launch_add2" and event.get("cat") == "cpu_op"]
    print(f"   {len(calls)} calls")
    assert len(calls) == 4 * 20


main()
