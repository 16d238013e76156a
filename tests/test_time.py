"""time.py: what it prints, what it writes, and how it ends. No test here depends on how long anything takes."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lab import files
from lab.bench import calls, clock, kernels, sync_study
from lab.build import cache

ROOT = Path(__file__).resolve().parent.parent

has_gpu = torch.cuda.is_available()
CLOCKS = {"host", "events", "gpu", "gpu warm"} if has_gpu else {"host"}


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run with nearly every option, whose output and files several tests look at."""
    folder = tmp_path_factory.mktemp("ran")
    options = ["--dtype", "all", "--sizes", "100,2^10,2^40", "--clocks", "--kernels", "--host-cost", "--sync-study"]
    found = {"json": folder / "times.json"}
    if importlib.util.find_spec("matplotlib"):
        found["plot"] = folder / "times.png"
    for name, file in found.items():
        options += [f"--{name}", str(file)]
    command = [sys.executable, str(ROOT / "time.py"), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(found["json"].read_text())
    return SimpleNamespace(out=done.stdout, err=done.stderr, content=content, folder=folder, **found)


def test_time(ran):
    """The table, and the same figures in the JSON file, in the documented form."""
    content = ran.content
    assert set(content) >= {"environment", "build", "results", "correct"}
    assert content["correct"] is content["complete"] is True
    assert content["environment"]["torch"] == torch.__version__
    assert content["environment"]["command"].startswith("python3 time.py --dtype all --sizes")
    assert set(content["build"][0]) == {"compiler", "binding", "library", "seconds", "cached"}
    points = {(row["dtype"], row["n"]) for row in content["results"]}
    assert points == {(dtype, n) for dtype in calls.DTYPES for n in (100, 1024)}
    for row in content["results"]:
        assert row["clock"] in CLOCKS
        tensors = 2 if row["call"] == "torch.neg" else 3
        assert row["bytes"] == tensors * row["n"] * getattr(torch, row["dtype"]).itemsize
        assert 0 < row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["samples"] >= 10
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3, rel=2e-3)
        assert calls.figure(row["median_us"]) in ran.out
        assert row["call"] in ran.out
        if row["call"] in ("torch.add", "torch.add(out)"):
            assert row["ratio_to_torch"] == 1
    found = {row["call"] for row in content["results"]}
    assert found >= {"torch.add", "torch.add(out)", "add2", "torch_launch_add2", "torch.neg"}
    assert found >= {f"{name} kernel" for name in kernels.ENUM_ADD2_KERNEL if has_gpu}
    assert "2^40 elements of float16 do not fit" in ran.err
    legend = ran.out[ran.out.index("\nGPU us: median" if has_gpu else "\nhost us: median") :]
    assert len(legend.strip().splitlines()) <= 3


@pytest.mark.thorough
def test_by_default(run):
    """Three sizes, only the calls that matter, one clock."""
    out = run("time.py").stdout
    assert [line.split()[0] for line in out.splitlines() if "elements of float32" in line][:2] == ["2^10", "2^20"]
    assert out.count("torch_launch_add2 ") == out.count("elements of float32") in (2, 3)
    assert out.count(" us ") == out.count("elements of float32")
    for word in ("kernel ", "torch.neg", "events", "warm"):
        assert word not in out.split("\nratio")[0].replace("kernel time", "")


def test_everything_that_is_printed_is_in_the_file(ran):
    for row in ran.content["host_cost"]:
        assert row["call"] in ran.out
        assert calls.figure(row["median_us"]) in ran.out
    for row in ran.content["sync_study"]:
        assert calls.figure(row["median_us"]) in ran.out


def test_sync_study(ran):
    rows = ran.content["sync_study"]
    sizes = {2**20, 2**26} if has_gpu else {2**20}
    assert {(row["call"], row["n"], row["before"], row["after"]) for row in rows} == {
        (call, n, before, after)
        for call in ("torch.add", "torch_launch_add2")
        for n in sizes
        for before in (True, False)
        for after in (True, False)
    }
    for row in rows:
        assert len(row["samples_us"]) == 10
        assert row["first_us"] == row["samples_us"][0]
        assert min(row["samples_us"]) <= row["median_us"] <= max(row["samples_us"])
    assert ("Only the kernel" if has_gpu else "which has ended when it returns") in ran.out


def test_picture(ran, matplotlib):
    assert ran.plot.read_bytes().startswith(b"\x89PNG")


def test_sweep_picture(matplotlib, tmp_path):
    """Two panels; each line has its row's name; the same figure gives the same bytes."""
    from lab.bench import plots

    rows = [
        {"compiler": "jit", "call": call, "dtype": "float32", "n": n, "clock": "gpu", "bytes": 12 * n}
        | {"median_us": us, "low_us": us, "high_us": us, "gb_per_s": 12 * n / us / 1e3, "ratio_to_torch": us / torch_us}
        for n, torch_us in ((2**20, 4.0), (2**30, 3000.0))
        for call, us in (("torch.add(out)", torch_us), ("torch_launch_add2", 0.99 * torch_us), ("torch.neg", torch_us))
    ]
    content = {"environment": {"name": "a GPU", "torch": "2.11", "peak_gb_per_s": 4800.0}, "results": rows}
    figure = plots.sweep(content)
    upper, lower = figure.axes
    names = [text.get_text() for text in upper.get_legend().get_texts()]
    assert names == ["torch.add(out)", "torch_launch_add2", "peak of the memory"]
    assert [list(line.get_ydata()) for line in lower.lines] == [[1, 1], [0.99, 0.99]]
    assert lower.get_ylim() == pytest.approx((0.895, 1.105))
    svg = files.to_picture(figure, tmp_path / "sweep.svg")
    assert svg == files.to_picture(plots.sweep(content), tmp_path / "sweep.svg")


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
    assert [calls.figure(value) for value in (0.012345, 1.23456, 99.999, 123.456, 12345.6, 0)] == [
        *("0.01235", "1.235", "100.0", "123.5", "12350", "0")
    ]
    assert [calls.power(n) for n in (10, 100, 1024, 2**20 + 1, 2**20 + 77)] == [
        *("10", "100", "2^10", "2^20+1", "1048653")
    ]


def test_repeats_until_the_time_is_up(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 1000)  # a round takes a millisecond
    monkeypatch.setattr(clock, "BUDGET_S", 0.0505)
    values = iter(range(10**6))
    rising, steady = clock.repeat("here", [lambda: [float(next(values))], lambda: [7.0]], warm_up=0)
    assert vars(steady) == {"median_us": 7.0, "low_us": 7.0, "high_us": 7.0, "samples": 110}
    figures = {"median_us": 54.5, "low_us": 5.45, "high_us": 103.55, "samples": 110}  # of 0 to 109
    assert vars(rising) == pytest.approx(figures)
    monkeypatch.setattr(clock, "BUDGET_S", 0.0)
    assert clock.repeat("here", [lambda: [float(next(values))]], warm_up=3)[0].samples == 10
    assert next(values) == 123  # the warm-up is left out


def test_noisy_figures_are_marked(monkeypatch):
    spread = {True: clock.Timing(10.0, 9.0, 20.0, 50), False: clock.Timing(10.0, 9.9, 10.1, 50)}
    sets = calls.buffers(100, torch.float32, torch.device("cpu"))
    compared = {"torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c)}
    for wide in (True, False):
        monkeypatch.setattr(clock, "host", lambda calls, device, wide=wide: [spread[wide]])
        rows = calls.measure("jit", compared, sets, True)
        assert rows[0].get("noisy", False) == wide
        assert ("10.00~" in calls.table(rows)) == wide
        assert ("~: noisy" in calls.legend(rows)) == wide


# --- runs of their own


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the project, for builds that leave files in its folder."""
    folder = tmp_path_factory.mktemp("project") / "a copy"
    shutil.copytree(ROOT, folder, ignore=cache.leftovers)
    return folder


@pytest.mark.thorough
def test_time_all_builds(run, copy, tmp_path):
    file = tmp_path / "times.json"
    done = run("time.py", "--compiler", "all", "--sizes", "1000", "--host-cost", "--json", file, root=copy)
    content = json.loads(file.read_text())
    names = [row["compiler"] for row in content["build"]]
    assert {"jit", "setup", "cmake"} <= set(names)
    assert {row["compiler"] for row in content["results"]} == set(names)
    assert content["correct"] is content["complete"] is True
    assert {row["compiler"] for row in content["host_cost"]} == set(names)
    assert content["environment"]["command"].startswith("python3 time.py --compiler all")
    for name in names:
        assert f"add2 by {name} (dispatcher): " in done.stdout
        assert f"torch_launch_add2 ({name})" in done.stdout


@pytest.mark.thorough
def test_time_finds_a_wrong_result(run, project, tmp_path):
    """A kernel that computes something else: exit status 1, nothing timed, and the file says so."""
    source = project / "kernel" / "add2_cpu.cpp"
    right = source.read_text()
    wrong = right.replace("[i] + ", "[i] - ").replace("_mm256_add_ps(", "_mm256_sub_ps(")
    assert wrong != right
    source.write_text(wrong)
    file = tmp_path / "times.json"
    done = run("time.py", "--device", "cpu", "--sizes", "1000", "--json", file, root=project, status=1)
    assert "differs from torch's" in done.stderr
    assert "torch_launch_add2" in done.stderr
    content = json.loads(file.read_text())
    assert content["correct"] is False
    assert content["results"] == []


@pytest.mark.thorough
def test_nothing_fits(run, copy, tmp_path):
    old = tmp_path / "old.json"
    old.write_text("{}")
    assert "nothing was timed" in run("time.py", "--sizes", "2^40", "--json", old, status=2).stderr
    assert old.read_text() == "{}"
    assert "nothing was timed" in run("time.py", "--compiler", "all", "--sizes", "2^40", root=copy, status=2).stderr


@pytest.mark.thorough
def test_out_of_memory_in_the_middle(run, tmp_path):
    """Figures measured before and after an error stay; exit status 1 and the cure."""
    file = tmp_path / "times.json"
    code = f"""
import runpy, sys, torch
from lab.bench import calls
buffers = calls.buffers
def limited(n, *more):
    if n == 32: raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
    return buffers(n, *more)
calls.buffers = limited
sys.argv = ["time.py", "--sizes", "16..64", "--json", {str(file)!r}]
runpy.run_path("time.py", run_name="__main__")
"""
    done = run("-c", code, status=1)
    assert "out of memory with 2^5 elements of float32; give smaller --sizes" in done.stderr
    content = json.loads(file.read_text())
    assert {row["n"] for row in content["results"]} == {16, 64}
    assert (content["correct"], content["complete"]) == (True, False)


@pytest.mark.thorough
def test_a_library_without_the_operator(run):
    """It is not measured, nor is another library in its place."""
    code = "import ctypes; ctypes.CDLL('libm.so.6'); print([x for x in open('/proc/self/maps') if 'libm' in x][0])"
    library = run("-c", code).stdout.split()[-1]
    for program in ("time.py", "train.py"):
        done = run(program, "--library", library, "--device", "cpu", status=1)
        assert "has no operator add2" in done.stderr
        assert done.stdout == ""


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number, start, tmp_path):
    """Ctrl-C, and `kill`: what is there is kept."""
    file = tmp_path / "times.json"
    with start(
        "time.py",
        *("--sizes", "2^4..2^24", "--dtype", "all", "--json", file),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        lines = []
        while not any(line.startswith("2^5 elements") for line in lines):
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err
    content = json.loads(file.read_text())
    assert content["complete"] is False
    assert content["correct"] is True
    assert {row["n"] for row in content["results"]} >= {16}
    assert {row["n"] for row in content["results"]} < {2**i for i in range(4, 25)}
    assert "ratio: " in out


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_among_all_builds(number, start, copy, tmp_path):
    """A terminal sends Ctrl-C to the children as well, `kill` its signal to one process: all end, and what they have
    saved is put together. No folder stays."""
    file, temporary = tmp_path / "times.json", tmp_path / "temporary"
    temporary.mkdir()
    with start(
        copy / "time.py",
        *("--compiler", "all", "--sizes", "2^4..2^24", "--dtype", "all", "--json", file),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(temporary)},
    ) as process:
        deadline = time.monotonic() + 300
        while not (child := measuring(process.pid)):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        before = written(child)
        while written(child) < before + 6000:  # some of its 84 tables, each of 400 characters
            assert time.monotonic() < deadline
            time.sleep(0.1)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not Path(f"/proc/{child}").exists()
    assert list(temporary.iterdir()) == []
    content = json.loads(file.read_text())
    assert content["complete"] is False
    assert {row["compiler"] for row in content["results"]} == {"jit"}
    assert len({(row["dtype"], row["n"]) for row in content["results"]}) < 4 * 21  # the child was ended, too
    assert "ratio: " in out


def written(process):
    """The characters that a process has written, also to /dev/null."""
    return int(re.search(r"wchar: (\d+)", Path(f"/proc/{process}/io").read_text())[1])


def measuring(parent):
    """The child of `time.py --compiler all` that has loaded its library, or None."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            command = Path(f"/proc/{child}/cmdline").read_text()
            if "time.py" in command and "add2.so" in Path(f"/proc/{child}/maps").read_text():
                return child
        except OSError:  # it has just ended
            pass
    return None
