"""time.py: what it prints, what it writes, and how it ends. No test here depends on how long anything takes."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from test_programs import program

from lab import build
from lab.bench import calls, kernels

ROOT = Path(__file__).resolve().parent.parent

has_gpu = torch.cuda.is_available()
CLOCKS = {"host", "events", "gpu", "gpu warm"} if has_gpu else {"host"}


def test_time(run, tmp_path):
    """One run with nearly every option: the table, the same figures in the JSON file, and the picture."""
    options = ["--dtype", "all", "--sizes", "2^10", "--clocks", "--kernels", "--host-cost", "--sync-study"]
    options += ["--plot", "times.png"] * bool(importlib.util.find_spec("matplotlib"))
    out = run("time.py", *options, "--json", "times.json", cwd=tmp_path).stdout
    content = json.loads((tmp_path / "times.json").read_text())
    assert content["correct"] is content["complete"] is True
    assert content["environment"]["command"].startswith("python3 time.py --dtype all --sizes")
    assert set(content["build"][0]) == {"compiler", "library", "seconds"}
    points = {(row["dtype"], row["n"]) for row in content["results"]}
    assert points == {(dtype, 1024) for dtype in calls.DTYPES}
    assert {row["clock"] for row in content["results"]} == CLOCKS
    for row in content["results"]:
        assert row["bytes"] == 3 * row["n"] * getattr(torch, row["dtype"]).itemsize
        assert 0 < row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["samples"] >= 10
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3, rel=2e-3)
        assert calls.figure(row["median_us"]) in out
    found = {row["call"] for row in content["results"]}
    assert found >= {"torch.add", "torch.add(out)", "add2", "torch_launch_add2"}
    assert found >= {f"{name} kernel" for name in kernels.KERNELS if has_gpu}
    assert len(content["sync_study"]) == (16 if has_gpu else 8)
    for row in content["host_cost"] + content["sync_study"]:
        assert row["call"] in out
        assert calls.figure(row["median_us"]) in out
    if "--plot" in options:
        assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")


RIGHT = {"torch.add": lambda c, a, b, n: a + b, "torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c)}
DIFFERS = "add2: the result for 100 elements of torch.float32 differs from torch's"
FAILING = {  # what is wrong: a call, the message, what was measured before
    "a value": (lambda c, a, b, n: a - b, DIFFERS, set()),
    "an element left out": (lambda c, a, b, n: torch.add(a[1:], b[1:], out=c[1:]), DIFFERS, set()),
    "memory": (lambda c, a, b, n: torch.empty(2**50) if n > 100 else a + b, "give smaller --sizes", {100}),
}


@pytest.mark.parametrize("case", FAILING)
def test_failing_call(case, monkeypatch, tmp_path, capsys):
    """Exit status 1, one line, nothing of a wrong call is timed, and the file says so."""
    time_py, file = program("time.py"), tmp_path / "times.json"
    call, message, measured = FAILING[case]
    monkeypatch.setattr(time_py.bench, "calls", lambda: RIGHT | {"add2": call})
    monkeypatch.setattr(time_py.build, "load", lambda *_, **__: build.Build("jit", Path("a.so")))
    monkeypatch.setattr(sys, "argv", ["time.py", "--device", "cpu", "--sizes", "100,200", "--json", str(file)])
    assert time_py.main() == 1
    assert message in capsys.readouterr().err
    content = json.loads(file.read_text())
    assert (content["correct"], content["complete"]) == (message != DIFFERS, False)
    assert {row["n"] for row in content["results"]} == measured


@pytest.mark.thorough
@pytest.mark.anywhere
def test_time_all_builds(run, project, tmp_path):
    file = tmp_path / "times.json"
    options = ["--compiler", "all", "--sizes", "1000", "--host-cost", "--json", file]
    done = run("time.py", *options, root=project, ADD2_WITH_CUDA=str(int(has_gpu)))
    content = json.loads(file.read_text())
    names = {row["compiler"] for row in content["build"]}
    assert names >= {"jit", "setup", "cmake"}
    for part in ("results", "host_cost"):
        assert {row["compiler"] for row in content[part]} == names
    assert content["correct"] is content["complete"] is True
    for name in names:
        assert f"add2 by {name}: " in done.stdout
        assert f"torch_launch_add2 ({name})" in done.stdout
