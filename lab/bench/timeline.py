"""The four synchronizations on a time axis, as torch.profiler saw host and GPU.

record() writes a trace in the format of chrome://tracing and Perfetto (ui.perfetto.dev). spans() reads from it what
plots.py draws: for each case the interval that the clock measured, the host's calls, the GPU's kernels.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from . import clock
from .sync_study import CASES

CALL = "torch_launch_add2"
N = 2**24  # large enough to see the kernel next to its launch, small enough to see the launch next to the kernel
WARM_UP = TIMED = 4


def record(call: Callable, device: torch.device, trace: Path) -> None:
    """Run the four cases under the profiler, on n = 2^24 float32 elements, and write the trace."""
    a, b = torch.randn(2, N, device=device)
    c = torch.empty_like(a)
    once = functools.partial(call, c, a, b, N)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=activities) as profiler:
        _case(once, device, True, True)  # not drawn: the profiler is slow with its first events
        for (before, after), (name, _) in CASES.items():
            with clock.phase(f"case: {name}"):
                _case(once, device, before, after)
    profiler.export_chrome_trace(str(trace))


def _case(call: Callable[[], object], device: torch.device, before: bool, after: bool) -> None:
    clock.synchronize(device)
    with clock.phase("warm-up"):
        for _ in range(WARM_UP):
            call()
    with clock.phase("timed"):
        for _ in range(TIMED):
            if before:
                clock.synchronize(device)
            with clock.phase("clock"):
                call()
                if after:
                    clock.synchronize(device)
    clock.synchronize(device)


def spans(trace: Path) -> list[dict]:
    """[{"case", "row": "clock", "host" or "GPU", "name", "warm_up", "start_us", "end_us"}], from each case's start."""
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("ph") == "X"]
    named = [event for event in events if event.get("cat") == "user_annotation"]
    launches = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
    found = []
    for case in (event for event in named if event["name"].startswith("case: ")):
        inside = [event for event in named if _within(event, case)]
        warm_up, timed = (next(event for event in inside if event["name"] == name) for name in ("warm-up", "timed"))

        def add(row: str, name: str, event: dict, in_warm_up: bool, case: dict = case) -> None:
            span = {"case": case["name"].removeprefix("case: "), "row": row, "name": name, "warm_up": in_warm_up}
            start = event["ts"] - case["ts"]
            found.append(span | {"start_us": start, "end_us": start + event["dur"]})

        for event in (event for event in inside if event["name"] == "clock"):
            add("clock", "measured", event, False)
        for event in launches.values():
            if _within(event, warm_up) or _within(event, timed):
                name = "synchronization" if "Synchronize" in event["name"] else "launch"
                add("host", name, event, _within(event, warm_up))
        for event in (event for event in events if event.get("cat") == "kernel"):
            launch = launches.get(event["args"].get("correlation"))
            if launch and _within(launch, case):
                add("GPU", "kernel", event, _within(launch, warm_up))
    return found


def _within(event: dict, outer: dict) -> bool:
    return outer["ts"] <= event["ts"] and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"]
