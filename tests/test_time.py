"""time.py: what it prints, what it writes, and how it ends. No test here depends on how long anything takes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_programs import program

from lab import build
from lab.bench import calls, kernels

ROOT = Path(__file__).resolve().parent.parent

has_gpu = torch.cuda.is_available()
CLOCKS = {"host", "events", "gpu", "gpu warm"} if has_gpu else {"host"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run with nearly every option, whose output and files several tests look at."""
    folder = tmp_path_factory.mktemp("ran")
    options = ["--dtype", "all", "--sizes", "100,2^10", "--clocks", "--kernels", "--host-cost", "--sync-study"]
    options += ["--json", "times.json"]
    if importlib.util.find_spec("matplotlib"):
        options += ["--plot", "times.png"]
    command = [sys.executable, str(ROOT / "time.py"), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((folder / "times.json").read_text())
    return SimpleNamespace(out=done.stdout, content=content, plot=folder / "times.png")


def test_time(ran):
    """The table, and the same figures in the JSON file, in the documented form."""
    content = ran.content
    assert content["correct"] is content["complete"] is True
    assert content["environment"]["command"].startswith("python3 time.py --dtype all --sizes")
    assert set(content["build"][0]) == {"compiler", "library", "seconds"}
    points = {(row["dtype"], row["n"]) for row in content["results"]}
    assert points == {(dtype, n) for dtype in calls.DTYPES for n in (100, 1024)}
    assert {row["clock"] for row in content["results"]} == CLOCKS
    for row in content["results"]:
        assert row["bytes"] == 3 * row["n"] * getattr(torch, row["dtype"]).itemsize
        assert 0 < row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["samples"] >= 10
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3, rel=2e-3)
        assert calls.figure(row["median_us"]) in ran.out
    found = {row["call"] for row in content["results"]}
    assert found >= {"torch.add", "torch.add(out)", "add2", "torch_launch_add2"}
    assert found >= {f"{name} kernel" for name in kernels.KERNELS if has_gpu}
    assert len(content["sync_study"]) == 8
    for row in content["host_cost"] + content["sync_study"]:
        assert row["call"] in ran.out
        assert calls.figure(row["median_us"]) in ran.out


def test_picture(ran):
    pytest.importorskip("matplotlib")
    from lab.bench import plots

    assert ran.plot.read_bytes().startswith(b"\x89PNG")
    upper, lower = plots.sweep(ran.content).axes
    names = [text.get_text() for text in upper.get_legend().get_texts()]
    assert names[:2] == ["torch.add(out)", "torch_launch_add2"]
    assert list(lower.lines[0].get_ydata()) == [1, 1]


WRONG = {
    "a value": lambda c, a, b, n: a - b,
    "an element left out": lambda c, a, b, n: torch.add(a[1:], b[1:], out=c[1:]),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_result(wrong, monkeypatch, tmp_path, capsys):
    """Exit status 1, nothing is timed, and the file says so."""
    time_py = program("time.py")
    right = {"torch.add": lambda c, a, b, n: a + b, "torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c)}
    monkeypatch.setattr(time_py.bench, "calls", lambda: right | {"add2": wrong})
    monkeypatch.setattr(time_py.build, "load", lambda *_, **__: build.Build("jit", Path("a.so")))
    file = tmp_path / "times.json"
    monkeypatch.setattr(sys, "argv", ["time.py", "--device", "cpu", "--sizes", "100", "--json", str(file)])
    assert time_py.main() == 1
    assert "add2: the result for 100 elements of torch.float32 differs from torch's" in capsys.readouterr().err
    content = json.loads(file.read_text())
    assert (content["correct"], content["complete"], content["results"]) == (False, False, [])


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
