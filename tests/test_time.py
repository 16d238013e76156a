"""time.py: what it prints, what it writes, and how it ends. No test here depends on how long anything takes."""

import csv
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

has_gpu = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not has_gpu, reason="needs a GPU")
CLOCKS = {"host", "events", "gpu", "gpu warm"} if has_gpu else {"host"}


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


def test_time(run, tmp_path):
    """The table, and the same figures in the JSON file, in the documented form."""
    file = tmp_path / "times.json"
    done = run("time.py", "--dtype", "all", "--sizes", "100, 2^10..2^11", "--json", file, cwd=tmp_path)
    content = json.loads(file.read_text())
    assert set(content) >= {"environment", "build", "results", "correct"}
    assert content["correct"] is True
    assert content["environment"]["torch"] == torch.__version__
    assert set(content["build"][0]) == {"compiler", "binding", "library", "seconds", "cached"}
    sizes = {(row["dtype"], row["n"]) for row in content["results"]}
    assert sizes == {(d, n) for d in ("float32", "float64", "float16", "bfloat16") for n in (100, 1024, 2048)}
    for row in content["results"]:
        assert row["clock"] in CLOCKS
        tensors = 2 if row["call"] == "copy" else 3
        assert row["bytes"] == tensors * row["n"] * getattr(torch, row["dtype"]).itemsize
        assert 0 < row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["samples"] >= 10
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3)
        assert f"{row['gb_per_s']:.1f}" in done.stdout or row["clock"] != ("gpu" if has_gpu else "host")
    calls = {row["call"] for row in content["results"]}
    assert calls >= {"torch.add", "torch.add(out)", "add2", "torch_launch_add2"}
    for row in content["results"]:
        if row["call"] in ("torch.add", "torch.add(out)"):
            assert row["ratio_to_torch"] == 1


def test_time_all_builds(run, tmp_path):
    file = tmp_path / "times.json"
    done = run("time.py", "--compiler", "all", "--sizes", "1000", "--json", file)
    content = json.loads(file.read_text())
    assert [row["compiler"] for row in content["build"]] == ["jit", "setup", "cmake"]
    assert {row["compiler"] for row in content["results"]} == {"jit", "setup", "cmake"}
    assert content["correct"] is True
    for build, row in zip(content["build"], content["compare"], strict=True):
        name = build["compiler"]
        assert f"add2 ({name})" in done.stdout
        assert row["compiler"] == name
        assert row["library_bytes"] == Path(build["library"]).stat().st_size
        assert row["cold_s"] > row["warm_s"] > 0
        assert row["host_us"] > 0
    for part in ("cold build s", "warm load s", "library kB", "host us"):
        assert part in done.stdout


def test_time_finds_a_wrong_result(run, project, tmp_path):
    """A kernel that computes something else: exit status 1, nothing timed, and the file says so."""
    source = project / "kernel" / "add2_cpu.cpp"
    source.write_text(
        source.read_text().replace("a[i] + b[i]", "a[i] - b[i]").replace("_mm256_add_ps(", "_mm256_sub_ps(")
    )
    file = tmp_path / "times.json"
    done = run("time.py", "--device", "cpu", "--sizes", "1000", "--json", file, root=project, status=1)
    assert "differs from torch's" in done.stderr
    assert "torch_launch_add2" in done.stderr
    content = json.loads(file.read_text())
    assert content["correct"] is False
    assert content["results"] == []


def test_time_leaves_out_what_does_not_fit(run):
    done = run("time.py", "--sizes", "1000,2^40")
    assert "do not fit" in done.stderr
    assert "1000 elements" in done.stdout
    assert "nothing was timed" in run("time.py", "--sizes", "2^40", status=2).stderr
    assert "cold build" in run("time.py", "--compiler", "all", "--sizes", "2^40", status=2).stdout


def test_offset(run, tmp_path):
    """Views that start at no multiple of 16 bytes are timed; kernels that cannot run on them are left out."""
    file = tmp_path / "times.json"
    done = run("time.py", "--sizes", "1000", "--offset", "1", "--kernels", "--json", file)
    assert "views from element 1 on" in done.stdout
    rows = json.loads(file.read_text())["results"]
    assert {row["offset"] for row in rows} == {1}
    assert ("vector kernel" in {row["call"] for row in rows}) is False
    again = run("time.py", "--sizes", "1000", "--against", file).stdout
    assert "0 figures are in both runs" in again


def test_everything_that_is_printed_is_in_the_files(run, tmp_path):
    """JSON and CSV hold the same rows, and a row for every line of every table."""
    files = tmp_path / "times.json", tmp_path / "times.csv"
    options = ("--sizes", "100", "--host-cost", "--sync-study")
    done = run("time.py", *options, "--json", files[0], "--csv", files[1])
    content = json.loads(files[0].read_text())
    with files[1].open() as file:
        table = list(csv.DictReader(file))
    assert content["environment"]["command"].startswith("python3 time.py --sizes 100 --host-cost")
    for name in ("build", "results", "host_cost", "sync_study"):
        rows = [row for row in table if row["table"] == name]
        assert len(rows) == len(content[name]) > 0
        for row, expected in zip(rows, content[name], strict=True):
            assert {key: row[key] for key in expected} == {key: str(value) for key, value in expected.items()}
    for row in content["host_cost"] + content["results"]:
        assert row["call"] in done.stdout
        assert f"{row['median_us']:.2f}" in done.stdout


def test_sync_study(run, tmp_path):
    file = tmp_path / "times.json"
    done = run("time.py", "--sizes", "100", "--sync-study", "--json", file)
    rows = json.loads(file.read_text())["sync_study"]
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
    assert ("nothing to wait for" in done.stdout) or has_gpu


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_sync_study_synchronizes_where_it_says(before, after, monkeypatch):
    from lab import clock, sync_study

    done = []
    monkeypatch.setattr(clock, "synchronize", lambda device: done.append("s"))
    monkeypatch.setattr(time, "perf_counter", lambda: done.append("|") or 0.0)
    sync_study.samples(lambda: done.append("c"), torch.device("cpu"), before, after)
    one = "s" * before + "|c" + "s" * after + "|"
    assert "".join(done) == "s" + "c" * 10 + one * 10 + "s"


def test_repeats_until_steady_or_out_of_time(monkeypatch):
    from lab import clock

    ticks = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 1000)  # a round takes a millisecond
    monkeypatch.setattr(clock, "BUDGET_S", 0.045)
    (steady,) = clock.repeat([lambda: [7.0]], least=20)
    assert vars(steady) == {"median_us": 7.0, "low_us": 7.0, "high_us": 7.0, "samples": 30}  # past half of the time
    values = iter(range(1, 10**6))
    wild, calm = clock.repeat([lambda: [float(next(values))], lambda: [1.0]], least=20)
    assert wild.samples == calm.samples == 91  # both wait for the one that never becomes steady
    assert (wild.low_us, wild.median_us, wild.high_us) == (5, 46, 87)


def test_doubtful_figures_are_marked(monkeypatch):
    from lab import clock, measure, report

    spread = {True: clock.Timing(10.0, 9.0, 20.0, 50), False: clock.Timing(10.0, 9.9, 10.1, 50)}
    sets = measure.buffers(100, torch.float32, torch.device("cpu"))
    calls = {"torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c)}
    for wide in (True, False):
        monkeypatch.setattr(clock, "host", lambda calls, device, wide=wide: [spread[wide]])
        rows = measure.measure("jit", calls, sets)
        assert bool(rows[0].doubt) == wide
        assert ("10.00~" in report.table(rows)) == wide
        assert ("not to be trusted" in report.legend(rows)) == wide


def test_a_busy_or_throttled_gpu_is_told(monkeypatch, tmp_path):
    """A nvidia-smi of our own: 37% busy, and its counter of throttled microseconds grows by 250000 a call."""
    from types import SimpleNamespace

    from lab import health

    state = tmp_path / "state"
    state.write_text("0")
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"""#!{sys.executable}
from pathlib import Path
state = Path({str(state)!r})
counter = int(state.read_text())
state.write_text(str(counter + 250000))
print(f"37, {{counter}}, 0, 5, [N/A], 0")
""")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="x"))
    warnings: list[str] = []
    with health.watched(torch.device("cuda", 0), warnings):
        pass
    assert warnings == [
        "the GPU was 37% busy before we started: somebody else uses it",
        "the GPU's clock was held down for 0.25 s meanwhile (sw_power_cap)",
    ]
    fake.write_text("#!/bin/sh\nexit 9\n")  # a driver that does not know the question
    with health.watched(torch.device("cuda", 0), warnings):
        pass
    assert len(warnings) == 2


def test_pictures(run, tmp_path, matplotlib):
    """A plot is drawn, and drawn again from the JSON file without measuring: the same picture."""
    json_file, first, again = tmp_path / "times.json", tmp_path / "first.png", tmp_path / "again.png"
    run("time.py", "--sizes", "2^4..2^6", "--dtype", "all", "--plot", first, "--json", json_file)
    assert first.read_bytes().startswith(b"\x89PNG")
    run("-m", "lab.picture", json_file, "--plot", again)
    assert again.read_bytes() == first.read_bytes()
    other = tmp_path / "other.png"
    content = json.loads(json_file.read_text())
    content["results"] = content["results"][: len(content["results"]) // 2]
    json_file.write_text(json.dumps(content))
    run("-m", "lab.picture", json_file, "--plot", other)
    assert other.read_bytes() != first.read_bytes()
    for arguments in ((json_file,), (json_file, "--timeline", other), (tmp_path / "none.json", "--plot", other)):
        run("-m", "lab.picture", *arguments, status=2)


def test_pictures_without_matplotlib(run, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no module of that name')")
    done = run("time.py", "--plot", tmp_path / "x.png", PYTHONPATH=str(tmp_path), status=2)
    assert "python3 -m pip install matplotlib" in done.stderr
    assert "building" not in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(has_gpu, reason="needs a machine without a GPU")
def test_timeline_needs_a_gpu(run, tmp_path, matplotlib):
    done = run("time.py", "--timeline", tmp_path / "x.png", status=2)
    assert "there is none here" in done.stderr
    assert done.stdout == ""


def test_trace(run, tmp_path):
    """The trace has the four cases in it; those of the warm-up and of the timed calls."""
    file = tmp_path / "trace.json"
    run("time.py", "--sizes", "100", "--trace", file)
    names = [event["name"] for event in json.loads(file.read_text())["traceEvents"] if event.get("ph") == "X"]
    for name in ("before and after", "before only", "after only", "neither"):
        assert f"case: {name}" in names
    assert names.count("add2::torch_launch_add2") == 5 * 8


def test_timeline_of_a_trace(tmp_path):
    """What is drawn: of a trace made by hand, each event in its case and row, from the start of its case."""
    from lab import timeline

    def event(name, cat, start, end, correlation=None):
        args = {} if correlation is None else {"correlation": correlation}
        return {"ph": "X", "name": name, "cat": cat, "ts": start, "dur": end - start, "args": args}

    trace = tmp_path / "trace.json"
    events = [
        event("case: after only", "user_annotation", 1000, 1200),
        event("warm-up", "user_annotation", 1010, 1030),
        event("cudaLaunchKernel", "cuda_runtime", 1012, 1016, 1),
        event("timed", "user_annotation", 1040, 1190),
        event("clock", "user_annotation", 1045, 1180),
        event("cudaLaunchKernel", "cuda_runtime", 1050, 1055, 2),
        event("cudaDeviceSynchronize", "cuda_runtime", 1060, 1175, 3),
        event("cudaDeviceSynchronize", "cuda_runtime", 1192, 1194, 4),  # after what is shown
        event("add2_vector", "kernel", 1020, 1090, 1),
        event("add2_vector", "kernel", 1090, 1170, 2),
        event("other", "kernel", 1300, 1370, 9),
    ]
    trace.write_text(json.dumps({"traceEvents": [*events, {"ph": "M", "name": "process_name"}]}))
    spans = [tuple(span.values()) for span in timeline.spans(trace)]
    assert spans == [
        ("after only", "clock", "measured", False, 45, 180),
        ("after only", "host", "launch", True, 12, 16),
        ("after only", "host", "launch", False, 50, 55),
        ("after only", "host", "synchronization", False, 60, 175),
        ("after only", "GPU", "kernel", True, 20, 90),
        ("after only", "GPU", "kernel", False, 90, 170),
    ]


@needs_gpu
def test_timeline(run, tmp_path, matplotlib):
    png, json_file, again = tmp_path / "timeline.png", tmp_path / "times.json", tmp_path / "again.png"
    run("time.py", "--sizes", "100", "--timeline", png, "--json", json_file)
    spans = json.loads(json_file.read_text())["timeline"]
    for case in ("before and after", "before only", "after only", "neither"):
        mine = [span for span in spans if span["case"] == case]
        for row, name, warm_up in [("clock", "measured", False)] + [
            (row, name, warm) for row, name in (("host", "launch"), ("GPU", "kernel")) for warm in (True, False)
        ]:
            found = [span for span in mine if (span["row"], span["name"], span["warm_up"]) == (row, name, warm_up)]
            assert len(found) == 4, (case, row, name, warm_up)
    run("-m", "lab.picture", json_file, "--timeline", again)
    assert again.read_bytes() == png.read_bytes()


def test_against_an_earlier_run(run, tmp_path):
    then, now = tmp_path / "then.json", tmp_path / "now.json"
    run("time.py", "--sizes", "100", "--json", then)
    content = json.loads(then.read_text())
    for row in content["results"]:
        factor = {"torch.add": 1000, "add2": 0.001}.get(row["call"], 1)
        row["low_us"], row["high_us"] = row["low_us"] / 1000 * factor, row["high_us"] * 1000 * factor
        row["median_us"] *= factor
    then.write_text(json.dumps(content))
    done = run("time.py", "--sizes", "100,200", "--against", then, "--json", now)
    rows = json.loads(now.read_text())["against"]
    assert len(rows) == len(content["results"])  # of the size that both have
    expected = {"torch.add(out)": "", "torch_launch_add2": "", "plain kernel": "", "copy": ""}
    for row in rows:
        if row["call"] in expected:
            assert row["verdict"] == ""
        assert row["ratio"] == pytest.approx(row["now_us"] / row["then_us"])
    assert f"{len(rows)} figures are in both runs" in done.stdout

    for row in content["results"]:
        row["low_us"] = row["high_us"] = row["median_us"] = {"add2": 1e-6}.get(row["call"], 1e9)
    then.write_text(json.dumps(content))
    run("time.py", "--sizes", "100", "--against", then, "--json", now)
    verdicts = {(row["call"] == "add2", row["verdict"]) for row in json.loads(now.read_text())["against"]}
    assert verdicts == {(True, "slower"), (False, "faster")}


def test_ctrl_c_keeps_what_is_there(start, tmp_path):
    file, table = tmp_path / "times.json", tmp_path / "times.csv"
    with start(
        "time.py",
        *("--sizes", "2^4..2^24", "--dtype", "all", "--json", file, "--csv", table),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        lines = []
        while not any(line.startswith("32 elements") for line in lines):
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err
    content = json.loads(file.read_text())
    assert content["complete"] is False
    assert content["correct"] is True
    assert {row["n"] for row in content["results"]} >= {16}
    assert {row["n"] for row in content["results"]} < {2**i for i in range(4, 25)}
    assert "x torch" in out
    assert table.exists()


def test_ctrl_c_among_all_builds(start, tmp_path):
    """A terminal sends it to the children as well; what they have saved is put together."""
    file = tmp_path / "times.json"
    with start(
        "time.py",
        *("--compiler", "all", "--sizes", "2^4..2^24", "--dtype", "all", "--json", file),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 300
        while True:  # until a child of ours says by its command that it measures, and has had some time for it
            for child in children.read_text().split():
                command = Path(f"/proc/{child}/cmdline").read_text()
                if "--host-cost" in command:
                    break
            else:
                assert time.monotonic() < deadline
                time.sleep(0.1)
                continue
            break
        time.sleep(8)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    content = json.loads(file.read_text())
    assert content["complete"] is False
    assert {row["compiler"] for row in content["compare"]} == {"jit"}
    assert "cold build" in out


def test_progress_on_a_terminal_and_in_a_log(start, run):
    """On a terminal a line that renews itself; elsewhere nothing, unless it takes long."""
    ours, theirs = pty.openpty()
    with start("time.py", "--sizes", "16,32", stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # how Linux tells that the other side is closed
                break
            if not chunk:
                break
            seen += chunk
    assert process.returncode == 0
    assert b"[1/2] 16 elements of float32" in seen
    assert b"[2/2] 32 elements of float32" in seen
    assert "[1/2]" not in run("time.py", "--sizes", "16,32").stderr
