"""time.py: what it prints, what it writes, and how it ends. No test here depends on how long anything takes."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lab.bench import calls, clock, kernels, sync_study

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
    for row in content["host_cost"] + content["sync_study"]:
        assert row["call"] in ran.out
        assert calls.figure(row["median_us"]) in ran.out


def test_sync_study(ran):
    cases = {(row["call"], row["n"], row["before"], row["after"]) for row in ran.content["sync_study"]}
    assert len(cases) == len(ran.content["sync_study"]) == (16 if has_gpu else 8)
    for row in ran.content["sync_study"]:
        assert len(row["samples_us"]) == 10
        assert row["first_us"] == row["samples_us"][0]
        assert min(row["samples_us"]) <= row["median_us"] <= max(row["samples_us"])


def test_picture(ran):
    pytest.importorskip("matplotlib")
    from lab.bench import plots

    assert ran.plot.read_bytes().startswith(b"\x89PNG")
    upper, lower = plots.sweep(ran.content).axes
    names = [text.get_text() for text in upper.get_legend().get_texts()]
    assert names[:2] == ["torch.add(out)", "torch_launch_add2"]
    assert list(lower.lines[0].get_ydata()) == [1, 1]


# --- parts, in this process


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_sync_study_synchronizes_where_it_says(before, after, monkeypatch):
    done = []
    monkeypatch.setattr(clock, "synchronize", lambda device: done.append("s"))
    monkeypatch.setattr(time, "perf_counter", lambda: done.append("|") or 0.0)
    sync_study.samples(lambda: done.append("c"), torch.device("cpu"), before, after)
    one = "s" * before + "|c" + "s" * after + "|"
    assert "".join(done) == "s" + "c" * 10 + one * 10 + "s"


def test_figure():
    figures = {0.012345: "0.01235", 1.23456: "1.235", 99.999: "100.0", 123.456: "123.5", 12345.6: "12350", 0: "0"}
    assert {value: calls.figure(value) for value in figures} == figures
    powers = {10: "10", 100: "100", 1024: "2^10", 2**20 + 1: "2^20+1", 2**20 + 77: "1048653"}
    assert {n: calls.power(n) for n in powers} == powers


def test_repeats_until_the_time_is_up(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 1000)  # a round takes a millisecond
    monkeypatch.setattr(clock, "BUDGET_S", 0.0505)
    values = iter(range(10**6))
    rising, steady = clock.repeat([lambda: [float(next(values))], lambda: [7.0]], warm_up=0)
    assert steady == clock.Timing(7.0, 7.0, 7.0, 110)
    assert vars(rising) == pytest.approx(vars(clock.Timing(54.5, 5.45, 103.55, 110)))  # of 0 to 109
    monkeypatch.setattr(clock, "BUDGET_S", 0.0)
    assert clock.repeat([lambda: [float(next(values))]], warm_up=3)[0].samples == 10
    assert next(values) == 123  # the warm-up is left out


@pytest.mark.parametrize("is_noisy", [True, False])
def test_noisy_figures_are_marked(is_noisy, monkeypatch):
    timing = clock.Timing(10.0, 9.0, 20.0, 50) if is_noisy else clock.Timing(10.0, 9.9, 10.1, 50)
    monkeypatch.setattr(clock, "host", lambda calls, device: [timing])
    sets = calls.buffers(100, torch.float32, torch.device("cpu"))
    rows = calls.measure("jit", {"torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c)}, sets, True)
    assert ("10.00~" in calls.table(rows)) == is_noisy
    assert ("~: noisy" in calls.legend(rows)) == is_noisy


@pytest.mark.parametrize("wrong", [lambda c, a, b, n: a - b, lambda c, a, b, n: torch.add(a[1:], b[1:], out=c[1:])])
def test_check(wrong):
    """A wrong value, or an element that is left out, is found; torch's own calls pass."""
    tensors = calls.buffers(100, torch.float32, torch.device("cpu"))[0]
    right = {"torch.add": lambda c, a, b, n: a + b, "torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c)}
    calls.check(right, tensors)
    with pytest.raises(calls.WrongResult, match="add2: the result for 100 elements"):
        calls.check(right | {"add2": wrong}, tensors)


# --- runs of their own


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


@pytest.mark.thorough
@pytest.mark.anywhere
def test_time_finds_a_wrong_result(run, project, tmp_path):
    """A kernel that computes something else: exit status 1, nothing timed, and the file says so."""
    source = project / "kernel" / "add2_cpu.cpp"
    right = source.read_text()
    source.write_text(right.replace("a[i] + b[i]", "a[i] - b[i]"))
    assert source.read_text() != right
    file = tmp_path / "times.json"
    done = run("time.py", "--device", "cpu", "--sizes", "1000", "--json", file, root=project, status=1)
    assert "differs from torch's" in done.stderr
    content = json.loads(file.read_text())
    assert (content["correct"], content["complete"], content["results"]) == (False, False, [])
