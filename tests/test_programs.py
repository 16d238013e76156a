"""time.py and train.py: wrong options, files that cannot be written, an end in the middle; what time.py prints. No test
here depends on how long anything takes."""

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab import build, files, toolchain
from lab.bench import calls, clock, kernels

ROOT = Path(__file__).resolve().parent.parent
has_gpu = torch.cuda.is_available()
CLOCKS = {"host", "events", "gpu", "gpu warm"} if has_gpu else {"host"}
WRONG = {
    "time.py": {
        ("--compiler", "make"): "invalid choice: 'make'",
        ("--device", "cuda:99"): "cuda:99 cannot be used",
        ("--device", "meta"): "meta cannot be used",
        ("--device", "hpu"): "hpu cannot be used",
        ("--sizes", "2^99"): "'2^99': expected numbers of elements, 1 to 2^40: 1000,2^20 or 2^10..2^28",
        ("--sizes", "9^999999999"): "expected numbers of elements",
        ("--sizes", "2^"): "expected numbers of elements",
        ("--sizes", "8.."): "expected numbers of elements",
        ("--sizes", "8..4"): "expected numbers of elements",
        ("--sizes", "ten"): "expected numbers of elements",
        ("--library", "README.md", "--compiler", "all"): "cannot be combined",
        ("--json", "/no/such/folder/x.json"): "cannot write /no/such/folder/x.json: No such file",
        ("--json", "/proc/x.json"): "cannot write",  # not even for root
        ("--json", "x" * 300): "cannot write",
        ("--json", "/dev/null"): "not a regular file",
        ("--plot", "x.txt"): ".svg",
        ("--json", "x.json", "--library", "./x.json"): "name the same file",
    },
    "train.py": {
        ("--epochs", "0"): "start",
        ("--compiler", "torch", "--check"): "with a build of add2",
        ("--cuda-graph", "--device", "cpu"): "a GPU",
        ("--resume", "/no/such/file.pt"): "cannot read",
        ("--save", "/proc/x.pt"): "cannot write",
        ("RANK=1",): "torchrun",
        ("RANK=x", "WORLD_SIZE=2"): "torchrun",
        ("RANK=0", "WORLD_SIZE=2"): "torchrun",
        ("RANK=2", "WORLD_SIZE=2", "TORCHELASTIC_RESTART_COUNT=0"): "torchrun",
        ("RANK=abc", "TORCHELASTIC_RESTART_COUNT=0"): "torchrun",
        ("RANK=0", "WORLD_SIZE=abc", "TORCHELASTIC_RESTART_COUNT=0"): "torchrun",
        ("--json", "x.pt", "--save", "./x.pt"): "--json and --save name the same file",
        ("--resume", "README.md", "--json", "README.md"): "--json and --resume name the same file",
    },
}
if importlib.util.find_spec("matplotlib"):
    WRONG["time.py"]["--json", "x.svg", "--plot", "x.svg"] = "name the same file"


def program(name):
    """A program as a module, under another name than Python's own module `time`."""
    spec = importlib.util.spec_from_file_location(f"program_{name[:-3]}", ROOT / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage(name, capsys, tmp_path, monkeypatch):
    """One line on stderr, exit status 2, and no file where the output would have gone."""
    (tmp_path / "README.md").write_text("no JSON")
    monkeypatch.chdir(tmp_path)
    parse, environment = program(name).parse, dict(os.environ)
    for arguments, message in WRONG[name].items():
        variables = dict(argument.split("=") for argument in arguments if "=" in argument)
        monkeypatch.setattr(os, "environ", environment | variables)
        with pytest.raises(SystemExit) as end:
            parse([] if variables else list(arguments))
        told = capsys.readouterr()
        assert (end.value.code, told.out) == (2, ""), arguments
        assert message in told.err.splitlines()[-1], (arguments, told.err)
    assert os.listdir(tmp_path) == ["README.md"]


def test_write(tmp_path):
    """It keeps the mode and a symbolic link, follows no other link, takes long names; where the disk is full, the old
    file stays as it was."""
    old, link, long = tmp_path / "old.json", tmp_path / f"old.json.{os.getpid()}", tmp_path / ("x" * 250)
    old.write_text("old")
    old.chmod(0o600)
    link.symlink_to(tmp_path / "elsewhere")
    for path in (old, long):
        files.write(files.target(str(path)), b"new")
        assert path.read_text() == "new"
    assert old.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "elsewhere").exists()
    named = tmp_path / "named"
    named.symlink_to(old)
    files.write(files.target(str(named)), b"new")
    assert named.is_symlink()
    before, limits = sorted(tmp_path.iterdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            files.write(old, b"as long as this")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (old.read_text(), sorted(tmp_path.iterdir())) == ("new", before)


def test_no_warning_where_there_is_no_gpu(run):
    """torch warns of a toolkit without a GPU, and that looks like an error; here it is nothing unusual."""
    assert "No CUDA runtime" not in run("-c", "from lab import build").stderr


def test_kernels_that_nvcc_refuses(monkeypatch):
    for found, message in {Path("/bin/false"): "nvcc's errors stand above", None: "no nvcc|no CUDA"}.items():
        monkeypatch.setattr(toolchain, "find_nvcc", lambda found=found: found)
        with pytest.raises(build.Failure, match=f"add2_kernel.cu is not compiled.*{message}"):
            kernels.kernels(torch.device("cuda"))


@pytest.mark.parametrize("name", WRONG)
def test_started_with_a_safe_path(name, run, tmp_path):
    """As `python3 -P` starts it: its folder is not on the path, and another package called lab is."""
    code = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    assert "usage:" in run("-c", code, ROOT / name, "--help", cwd=tmp_path).stdout


@pytest.mark.thorough
@pytest.mark.anywhere
def test_interrupted(tmp_path):
    """Ctrl-C, which a terminal sends to the children as well: what was done until then is kept."""
    options = ["--compiler", "all", "--sizes", "2^4..2^24", "--dtype", "all", "--json", tmp_path / "run.json"]
    # In a group of its own; and not deaf to Ctrl-C, as what a shell starts by `&` is.
    own = {"start_new_session": True, "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, ROOT / "time.py", *options], **own, **pipes) as process:
        while not (line := process.stdout.readline()).startswith("2^5 elements"):
            assert line or process.poll() is None, process.stderr.read()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in err
    content = json.loads((tmp_path / "run.json").read_text())
    assert (content["complete"], content["correct"]) == (False, True)
    assert 16 in {row["n"] for row in content["results"]}
    assert "bfloat16" not in {row["dtype"] for row in content["results"]}


def test_time(run, tmp_path):
    """One run with nearly every option: the table, the same figures in the JSON file, and the picture."""
    options = ["--dtype", "all", "--sizes", "2^10", "--clocks", "--kernels", "--host-cost", "--sync-study"]
    options += ["--plot", "times.png"] * bool(importlib.util.find_spec("matplotlib"))
    out = run("time.py", *options, "--json", "times.json", cwd=tmp_path).stdout
    content = json.loads((tmp_path / "times.json").read_text())
    assert content["correct"] is content["complete"] is True
    assert content["environment"]["command"].startswith("python3 time.py --dtype all --sizes")
    assert {"kernel/add2_cpu.cpp", "add2/ops.py"} <= content["environment"]["sources"].keys()
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


def test_mark_of_noise(monkeypatch):
    """Where other processes take the processors, all samples may be late, and equally so."""
    taken = iter((0, 1_000_000))
    monkeypatch.setattr(clock, "interruptions", lambda: next(taken))
    rows = calls.measure("jit", RIGHT, calls.buffers(100, torch.float32, torch.device("cpu")), every_clock=False)
    assert [row["noisy"] for row in rows] == [True, True]
    assert calls.table(rows).count("~") == 2
    assert "busy" in calls.legend(rows)
    taken = iter((5, 5))
    [quiet] = clock.host([lambda: None], torch.device("cpu"))
    assert quiet.is_noisy == (quiet.high_us - quiet.low_us > 0.25 * quiet.median_us)


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
