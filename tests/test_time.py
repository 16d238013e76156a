"""time.py: what it prints, what it writes, and how it ends. No test here depends on how long anything takes."""

import csv
import importlib.util
import itertools
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lab.bench import calls, clock, gpu_health, plots, results, sync_study, tables, timeline
from lab.build import cache

ROOT = Path(__file__).resolve().parent.parent

has_gpu = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not has_gpu, reason="needs a GPU")
CLOCKS = {"host", "events", "gpu", "gpu warm"} if has_gpu else {"host"}
CASES = ("before and after", "before only", "after only", "neither")


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run with nearly every option, whose output and files several tests look at."""
    folder = tmp_path_factory.mktemp("ran")
    options = ["--dtype", "all", "--sizes", "100,2^10,2^40", "--clocks", "--kernels", "--host-cost", "--sync-study"]
    found = {name: folder / f"times.{name}" for name in ("json", "csv", "trace")}
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
        assert tables.figure(row["median_us"]) in ran.out
        assert row["call"] in ran.out
        if row["call"] in ("torch.add", "torch.add(out)"):
            assert row["ratio_to_torch"] == 1
    found = {row["call"] for row in content["results"]}
    assert found >= {"torch.add", "torch.add(out)", "add2", "torch_launch_add2", "torch.neg"}
    assert found >= {f"{name} kernel" for name in calls.KERNELS["cuda" if has_gpu else "cpu"]}
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


def test_everything_that_is_printed_is_in_the_files(ran):
    """JSON and CSV hold the same rows, and a row for every line of every table."""
    with ran.csv.open() as file:
        table = list(csv.DictReader(file))
    for name in ("build", "results", "host_cost", "sync_study"):
        rows = [row for row in table if row["table"] == name]
        assert len(rows) == len(ran.content[name]) > 0
        for row, expected in zip(rows, ran.content[name], strict=True):
            assert {key: row[key] for key in expected} == {key: str(value) for key, value in expected.items()}
    for row in ran.content["host_cost"]:
        assert row["call"] in ran.out
        assert row["median_us"] > 0


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
    assert "The kernel takes" in ran.out if has_gpu else "A CPU has finished when a call returns" in ran.out


def test_trace(ran):
    """The trace has the four cases in it; those of the warm-up and of the timed calls."""
    names = [event["name"] for event in json.loads(ran.trace.read_text())["traceEvents"] if event.get("ph") == "X"]
    for name in CASES:
        assert f"case: {name}" in names
    assert names.count("add2::torch_launch_add2") == 5 * 8


@pytest.mark.thorough
def test_pictures(ran, run, tmp_path, matplotlib, capsys, monkeypatch):
    """A plot is drawn, and drawn again from the JSON file without measuring: the same picture."""
    first, again, other = ran.plot, tmp_path / "again.png", tmp_path / "other.png"
    assert first.read_bytes().startswith(b"\x89PNG")
    run("-m", "lab.bench.plots", ran.json, "--plot", again)
    assert again.read_bytes() == first.read_bytes()
    half = tmp_path / "half.json"
    half.write_text(json.dumps(ran.content | {"results": ran.content["results"][::2]}))

    def main(*arguments):
        monkeypatch.setattr(sys, "argv", ["plots", *map(str, arguments)])
        return plots.main()

    assert main(half, "--plot", other) == 0
    assert other.read_bytes() != first.read_bytes()
    half.write_text(json.dumps(ran.content | {"results": [], "timeline": []}))
    for arguments in ((ran.json,), (half, "--timeline", other), (half, "--plot", other), (other, "--plot", again)):
        with pytest.raises(SystemExit) as end:
            main(*arguments)
        assert end.value.code == 2
    with pytest.raises(SystemExit):
        main(tmp_path / "none.json", "--plot", other)
    assert "cannot read" in capsys.readouterr().err


def test_sweep_picture(matplotlib, tmp_path):
    """Two panels; each line has its row's name next to it; as an SVG it has other colours on a dark screen."""
    rows = [
        {"compiler": "jit", "call": call, "dtype": "float32", "n": n, "clock": "gpu", "bytes": 12 * n}
        | {"median_us": us, "low_us": us, "high_us": us, "gb_per_s": 12 * n / us / 1e3, "ratio_to_torch": us / torch_us}
        for n, torch_us in ((2**20, 4.0), (2**30, 3000.0))
        for call, us in (("torch.add(out)", torch_us), ("torch_launch_add2", 0.99 * torch_us), ("torch.neg", torch_us))
    ]
    content = {"environment": {"name": "a GPU", "torch": "2.11", "peak_gb_per_s": 4800.0}, "results": rows}
    figure = plots.sweep(content)
    upper, lower = figure.axes
    names = {"torch.add(out)", "torch_launch_add2"}
    for panel, expected in ((upper, names | {"peak of the memory"}), (lower, names)):
        places = {text.get_text(): text.xy[1] for text in panel.texts}
        assert set(places) == expected
        heights = sorted(places.values())
        letters = 0.08 * (panel.get_ylim()[1] - panel.get_ylim()[0])
        assert all(above - below > letters for below, above in itertools.pairwise(heights))
    assert lower.get_ylim() == pytest.approx((0.895, 1.105))
    svg = plots.render(figure, tmp_path / "sweep.svg").decode()
    assert svg == plots.render(plots.sweep(content), tmp_path / "sweep.svg").decode()
    assert "prefers-color-scheme: dark" in svg
    for colour in plots.DARK:
        assert f"fill: {colour}" in svg.split("<style>@media")[0]


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


@pytest.mark.parametrize(
    ("kernel", "first", "says", "not_says"),
    [
        (184.6, 1985.0, "It also waited for warm-up calls", "nothing to wait for"),
        (2.4, 11.8, "It found nothing to wait for", "warm-up calls"),
        (2.4, 32.0, "No queue explains that", "nothing to wait for"),  # seen on an H100
        (184.6, 15.0, "too few\nwarm-up calls were queued", "nothing to wait for"),
    ],
)
def test_the_studys_text_follows_from_its_figures(kernel, first, says, not_says):
    figures = {
        (True, True): (14, 13.3),
        (True, False): (8, 5.1),
        (False, True): (first, 12.5),
        (False, False): (6, 5.3),
    }
    rows = [
        {"call": "torch_launch_add2", "before": before, "after": after, "first_us": one, "median_us": median}
        for (before, after), (one, median) in figures.items()
    ]
    text = sync_study.explain(rows, kernel)
    assert says in text
    assert not_says not in text
    for figure in (kernel, first, 5.1, 5.3, 12.5, 13.3):
        assert tables.figure(figure) in text
    assert "do not wait for the kernel" in text
    rows[1]["median_us"] = 20.0
    assert "do not wait for the kernel" not in sync_study.explain(rows, kernel)


def test_figure():
    assert [tables.figure(value) for value in (0.012345, 1.23456, 99.999, 123.456, 12345.6, 0, None)] == [
        *("0.01235", "1.235", "100.00", "123.5", "12346", "0", "-")
    ]
    assert [tables.power(n) for n in (10, 100, 1024, 2**20 + 1, 2**20 + 77)] == [
        *("10", "100", "2^10", "2^20+1", "1048653")
    ]


def test_repeats_until_steady_or_out_of_time(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 1000)  # a round takes a millisecond
    monkeypatch.setattr(clock, "BUDGET_S", 0.045)
    (steady,) = clock.repeat([lambda: [7.0]], least=20)
    assert vars(steady) == {"median_us": 7.0, "low_us": 7.0, "high_us": 7.0, "samples": 30}  # past half of the time
    values = iter(range(1, 10**6))
    wild, calm = clock.repeat([lambda: [float(next(values))], lambda: [1.0]], least=20)
    assert wild.samples == calm.samples == 91  # both wait for the one that never becomes steady
    assert (wild.low_us, wild.median_us, wild.high_us) == (5, 46, 87)


def test_noisy_figures_are_marked(monkeypatch):
    spread = {True: clock.Timing(10.0, 9.0, 20.0, 50), False: clock.Timing(10.0, 9.9, 10.1, 50)}
    sets = calls.buffers(100, torch.float32, torch.device("cpu"))
    compared = {"torch.add(out)": lambda c, a, b, n: torch.add(a, b, out=c)}
    for wide in (True, False):
        monkeypatch.setattr(clock, "host", lambda calls, device, wide=wide: [spread[wide]])
        rows = calls.measure("jit", compared, sets, True, 0)
        assert rows[0].get("noisy", False) == wide
        assert ("10.00~" in tables.table(rows)) == wide
        assert ("~: noisy" in tables.legend(rows)) == wide


def test_a_busy_or_throttled_gpu_is_told(monkeypatch, tmp_path):
    """A nvidia-smi of our own: 37% busy, and its counter of throttled microseconds grows by 250000 a call."""
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
    with gpu_health.watched(torch.device("cuda", 0), warnings):
        pass
    assert warnings == [
        "the GPU was 37% busy before we started: another program uses it",
        "the GPU's clock was held down for 0.25 s meanwhile (sw_power_cap)",
    ]
    fake.write_text("#!/bin/sh\nexit 9\n")  # a driver that does not know the question
    with gpu_health.watched(torch.device("cuda", 0), warnings):
        pass
    assert len(warnings) == 2


def test_pictures_need_matplotlib(tmp_path, monkeypatch):
    """Said at the start, before anything is built."""
    from lab import cli

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Exception, match="python3 -m pip install matplotlib"):
        cli.picture(str(tmp_path / "x.png"))
    assert list(tmp_path.iterdir()) == []


def test_compare_with_an_earlier_run():
    """verdict: only where the percentiles are apart; a row is known by its call, dtype, size, clock and offset."""

    def row(call, low, median, high, **more):
        figures = {"low_us": low, "median_us": median, "high_us": high}
        return {"compiler": "jit", "call": call, "dtype": "float32", "n": 100, "clock": "host"} | figures | more

    then = [row("add2", 8.0, 10.0, 12.0), row("torch.add", 1.0, 2.0, 3.0), row("pybind11", 1.0, 1.0, 1.0)]
    then += [row("torch_launch_add2", 5.0, 6.0, 7.0), row("plain kernel", 1.0, 1.0, 1.0, offset=1)]
    now = [row("add2", 13.0, 20.0, 30.0), row("torch.add", 2.5, 4.0, 5.0), row("torch_launch_add2", 1.0, 3.0, 4.0)]
    now += [row("plain kernel", 1.0, 1.0, 1.0)]
    rows = results.compare(now, then)
    assert [(row["call"], row["ratio"], row["verdict"]) for row in rows] == [
        ("add2", 2.0, "slower"),
        ("torch.add", 2.0, ""),
        ("torch_launch_add2", 0.5, "faster"),
    ]
    text = results.against_table(rows, {"environment": {"name": "a machine", "torch": "2.10", "date": "2026-01-01"}})
    assert "Against a run of 2026-01-01 on a machine, torch 2.10" in text
    assert "3 figures are in both runs; 2 differ by more" in text


def test_timeline_of_a_trace(tmp_path):
    """A trace made by hand is drawn with each event in its case and row, from the start of its case."""

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


# --- runs of their own


@needs_gpu
@pytest.mark.thorough
def test_timeline(run, tmp_path, matplotlib):
    png, json_file, again = tmp_path / "timeline.png", tmp_path / "times.json", tmp_path / "again.png"
    run("time.py", "--sizes", "100", "--timeline", png, "--json", json_file)
    spans = json.loads(json_file.read_text())["timeline"]
    for case in CASES:
        mine = [span for span in spans if span["case"] == case]
        for row, name, warm_up in [("clock", "measured", False)] + [
            (row, name, warm) for row, name in (("host", "launch"), ("GPU", "kernel")) for warm in (True, False)
        ]:
            found = [span for span in mine if (span["row"], span["name"], span["warm_up"]) == (row, name, warm_up)]
            assert len(found) == 4, (case, row, name, warm_up)
    run("-m", "lab.bench.plots", json_file, "--timeline", again)
    assert again.read_bytes() == png.read_bytes()


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the project, for builds that leave files in its folder."""
    folder = tmp_path_factory.mktemp("project") / "a copy"
    shutil.copytree(ROOT, folder, ignore=cache.leftovers)
    return folder


@pytest.mark.thorough
def test_time_all_builds(run, copy, tmp_path):
    file = tmp_path / "times.json"
    done = run("time.py", "--compiler", "all", "--sizes", "1000", "--json", file, root=copy)
    content = json.loads(file.read_text())
    names = [row["compiler"] for row in content["build"]]
    assert {"jit", "setup", "cmake"} <= set(names)
    assert {row["compiler"] for row in content["results"]} == set(names)
    assert content["correct"] is content["complete"] is True
    for build, row in zip(content["build"], content["compare"], strict=True):
        assert f"torch_launch_add2 ({build['compiler']})" in done.stdout
        assert row["compiler"] == build["compiler"]
        if build["library"] and Path(build["library"]).is_file():  # nvrtc leaves none
            assert row["library_bytes"] == Path(build["library"]).stat().st_size
            assert row["cold_s"] > row["warm_s"] > 0
        assert row["host_us"] > 0
    for part in ("cold build s", "warm load s", "library kB", "host us"):
        assert part in done.stdout


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
def test_nothing_fits(run, copy):
    assert "nothing was timed" in run("time.py", "--sizes", "2^40", status=2).stderr
    assert "cold build" in run("time.py", "--compiler", "all", "--sizes", "2^40", root=copy, status=2).stdout


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
def test_offset_and_against(run, tmp_path):
    """Views that start at no multiple of 16 bytes are timed; kernels that cannot run on them are left out."""
    file, now = tmp_path / "times.json", tmp_path / "now.json"
    done = run("time.py", "--sizes", "1000", "--offset", "1", "--kernels", "--json", file)
    assert "views that start at element 1" in done.stdout
    rows = json.loads(file.read_text())["results"]
    assert {row["offset"] for row in rows} == {1}
    assert "vector kernel" not in {row["call"] for row in rows}
    assert "0 figures are in both runs" in run("time.py", "--sizes", "1000", "--against", file).stdout
    options = ("--sizes", "1000", "--offset", "1", "--against", file, "--json", now)
    assert "4 figures are in both runs" in run("time.py", *options).stdout
    assert len(json.loads(now.read_text())["against"]) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number, start, tmp_path):
    """Ctrl-C, and `kill`: what is there is kept."""
    file, table = tmp_path / "times.json", tmp_path / "times.csv"
    with start(
        "time.py",
        *("--sizes", "2^4..2^24", "--dtype", "all", "--json", file, "--csv", table),
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
    assert table.exists()


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
        time.sleep(2)
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
    assert {row["compiler"] for row in content["compare"]} == {"jit"}
    assert "cold build" in out


def measuring(parent):
    """The child of `time.py --compiler all` that has loaded its library, or None."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            command = Path(f"/proc/{child}/cmdline").read_text()
            if "--host-cost" in command and "add2.so" in Path(f"/proc/{child}/maps").read_text():
                return child
        except OSError:  # it has just ended
            pass
    return None


@pytest.mark.thorough
def test_progress_on_a_terminal(start):
    """A line that renews itself; elsewhere there is none (test_by_default)."""
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
    assert b"0/2 2^4 elements of float32" in seen
    assert b"1/2 2^5 elements of float32" in seen
