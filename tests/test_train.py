"""train.py: the same losses as with torch's own add, by one process and by several, interrupted and resumed."""

import argparse
import importlib.util
import json
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lab.build import COMPILERS, Failure, cache
from lab.train import checkpoint, loop, tasks

ROOT = Path(__file__).resolve().parent.parent
RESIDUAL = ("--model", "residual", "--device", "cpu")


def train(run, tmp_path, *arguments, **env):
    """The content of --json."""
    file = tmp_path / "run.json"
    run("train.py", *arguments, "--json", file, **env)
    return json.loads(file.read_text())


def test_toy(run):
    """The printed losses, which fall to nearly zero."""
    done = run("train.py")
    lines = [line for line in done.stdout.splitlines() if line.startswith("epoch")]
    assert len(lines) == 20
    assert re.fullmatch(r"epoch   0: loss = 2\d{3}\.\d{3}", lines[0])
    assert lines[-1].startswith("epoch 475: loss = ")
    values = [float(line.split("=")[1]) for line in lines]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.01 * values[0]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The networks are tiny: more threads only wait for each other where other tests run, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def residual(one_thread, tmp_path_factory):
    """The content of --json, and the picture, of one run of the residual network with both adds."""
    folder = tmp_path_factory.mktemp("residual")
    command = [sys.executable, str(ROOT / "train.py"), "--model", "residual", "--check", "--epochs", "4"]
    command += ["--json", str(folder / "run.json"), "--plot", str(folder / "curves.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "run.json").read_text()), (folder / "curves.png").read_bytes()


@pytest.mark.thorough
def test_residual(residual):
    """It learns; and --check finds the losses of torch's own add, bit for bit, on whatever device there is."""
    content, picture = residual
    ours, torchs = content["training"]
    assert ours["accuracies"][-1] >= 0.95
    assert ours["losses"] == torchs["losses"]
    assert len(set(ours["losses"])) == len(ours["losses"]) == len(ours["us_per_step"]) == 4
    assert content["settings"] == {"model": "residual", "seed": 0, "batch": 64, "dtype": "float32"}
    assert picture.startswith(b"\x89PNG")


@pytest.mark.thorough
def test_toy_as_with_torch(run, tmp_path_factory):
    """By each build the same losses as with torch's own add, to the last bit, on every device."""
    copy = tmp_path_factory.mktemp("project") / "a copy"
    shutil.copytree(ROOT, copy, ignore=cache.leftovers)
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        options = ("--device", device, "--epochs", "60", "--seed", "3")
        for compiler in COMPILERS:
            if compiler != "nvrtc" or device == "cuda":
                out = run("train.py", "--compiler", compiler, "--check", *options, root=copy).stdout
                assert "the same, bit for bit" in out
    lines = [line for line in out.splitlines() if line.startswith("epoch")]
    by_torch = run("train.py", "--compiler", "torch", *options).stdout.splitlines()
    assert lines == [line for line in by_torch if line.startswith("epoch")]
    assert len(set(lines)) == 3


@pytest.mark.thorough
def test_check_notices_a_wrong_operator(run):
    code = """
import sys, train, add2_wrong
sys.argv = ["train.py", "--check", "--epochs", "30", "--device", "cpu"]
sys.exit(train.cli.run(train.main))
"""
    wrong = """
import torch
from lab import build
load = build.load
def spoiled(*arguments, **options):
    build = load(*arguments, **options)
    import add2
    right = add2.add2
    add2.add2 = lambda a, b: right(a, b * 1.001)
    return build
build.load = spoiled
"""
    done = run("-c", code.replace("import sys, train, add2_wrong", "import sys, train\n" + wrong), status=1)
    assert "the losses differ" in done.stderr


def test_difference():
    """A NaN is one, wherever it comes; an interrupted run may have a loss more."""
    ours, torchs = (loop.History(losses) for losses in ([1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 3.0]))
    assert loop.difference(ours, torchs, 2) == 0
    assert loop.difference(ours, torchs) == pytest.approx(0.25)
    ours.losses[1] = math.nan
    assert math.isnan(loop.difference(ours, torchs))


@pytest.mark.thorough
def test_compiled(run, tmp_path, residual):
    """torch.compile takes the whole network (it would be an error if it broke), with about the same losses."""
    content = train(run, tmp_path, "--model", "residual", "--compile", "--epochs", "1")
    eager = residual[0]["training"][0]["losses"][:1]
    assert content["training"][0]["losses"] == pytest.approx(eager, rel=0.02)
    train(run, tmp_path, "--compile", "--check", "--epochs", "2")


@pytest.mark.thorough
def test_bfloat16(run, tmp_path, residual):
    """By autocast: other losses than in float32, though not by much; with add2 the same as with torch's own add."""
    content = train(run, tmp_path, "--model", "residual", "--dtype", "bfloat16", "--check", "--epochs", "1")
    found = content["training"][0]["losses"]
    exact = residual[0]["training"][0]["losses"][:1]
    assert found == content["training"][1]["losses"]
    assert found != exact
    assert found == pytest.approx(exact, rel=0.05)


@pytest.mark.thorough
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_graph(run, tmp_path):
    graph = train(run, tmp_path, "--cuda-graph", "--check")
    eager = train(run, tmp_path)
    assert graph["training"][0]["losses"] == graph["training"][1]["losses"] == eager["training"][0]["losses"]


def together(processes, *arguments, **options):
    """Start train.py by torchrun, which is `python -m torch.distributed.run`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += [*options.pop("torchrun", ()), "train.py", *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, **streams)


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [("--epochs", "50", "--device", "cpu"), (*RESIDUAL, "--epochs", "2")], ids=str)
def test_two_processes(arguments, run, tmp_path, monkeypatch):
    """They build once, share the data, and have the losses of one process except for rounding; only one prints.

    Few steps, as each enlarges a difference by rounding; and a batch that two processes cannot halve.
    """
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    started = together(2, *arguments, "--batch", "359", "--json", tmp_path / "pair.json")
    out, err = started.communicate(timeout=300)
    assert started.returncode == 0, err
    content = json.loads((tmp_path / "pair.json").read_text())
    assert content["processes"] == 2
    pair, single = content["training"][0], train(run, tmp_path, *arguments, "--batch", "359")["training"][0]
    assert pair["losses"] == pytest.approx(single["losses"], rel=2e-3)  # the file has four digits
    assert pair["accuracies"] == pytest.approx(single["accuracies"], abs=0.01)
    assert out.count("epoch   0: loss") == 1
    assert err.count("building add2") == 1


def workers(parent):
    """The processes that torchrun has started, once they train."""
    for _ in range(600):
        listed = subprocess.run(["pgrep", "-P", str(parent.pid), "-f", "train.py"], capture_output=True, text=True)
        pids = [int(pid) for pid in listed.stdout.split()]
        if len(pids) == 2:
            return pids
        time.sleep(0.1)
    raise AssertionError("torchrun starts no processes")


def begun(file):
    for _ in range(600):
        if file.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{file} is not written")


@pytest.mark.thorough
def test_a_process_dies(tmp_path):
    """The others end, with a message; they do not wait forever."""
    file = tmp_path / "checkpoint.pt"
    pair = together(2, *RESIDUAL, "--epochs", "10000", "--save", file)
    begun(file)
    os.kill(workers(pair)[1], signal.SIGKILL)
    _, err = pair.communicate(timeout=120)
    assert pair.returncode != 0
    assert "another one has ended" in err or "Signal 9 (SIGKILL)" in err
    assert 'train.py", line' not in err  # torchrun's own traceback is not ours


@pytest.mark.thorough
def test_torchrun_restarts(run, tmp_path):
    """With --max-restarts the run goes on from its checkpoint, to the weights of an unbroken one."""
    broken, unbroken = tmp_path / "broken.pt", tmp_path / "unbroken.pt"
    arguments = [*RESIDUAL, "--epochs", "6", "--batch", "479"]
    options = {"torchrun": ("--max-restarts", "1", "--monitor-interval", "0.1")}
    pair = together(2, *arguments, "--save", broken, "--resume", broken, **options)
    begun(broken)
    os.kill(workers(pair)[1], signal.SIGKILL)
    _, err = pair.communicate(timeout=300)
    assert pair.returncode == 0, err
    whole = together(2, *arguments, "--save", unbroken)
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    assert_equal(broken, unbroken)


def assert_equal(first, second):
    """Two checkpoints hold the same, except for the time that it took."""
    first, second = (checkpoint.load(path) for path in (first, second))
    assert first["settings"] == second["settings"]
    for name in ("losses", "accuracies"):
        assert first["history"][name] == second["history"][name]
    assert all(torch.equal(first["network"][name], tensor) for name, tensor in second["network"].items())
    for state, other in zip(*(c["optimizer"]["state"].values() for c in (first, second)), strict=True):
        assert torch.equal(state["momentum_buffer"], other["momentum_buffer"])


@pytest.mark.thorough
def test_resume(run, tmp_path):
    """The same bits as after an unbroken run."""
    broken, unbroken = tmp_path / "broken.pt", tmp_path / "unbroken.pt"
    arguments = [*RESIDUAL, "--batch", "256"]
    run("train.py", *arguments, "--epochs", "1", "--save", broken)
    done = run("train.py", *arguments, "--epochs", "3", "--resume", broken, "--save", broken)
    assert "epoch   0" not in done.stdout
    run("train.py", *arguments, "--epochs", "3", "--save", unbroken)
    assert_equal(broken, unbroken)


@pytest.mark.thorough
def test_killed_while_saving(run, tmp_path):
    """Ten times, at random moments; a whole checkpoint each time, and the next run goes on from it."""
    file = tmp_path / "checkpoint.pt"
    code = f"""
import os, random, signal, sys, time, torch
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1).zero_grad()  # imports once what each child would
from pathlib import Path
import train
from lab.train import checkpoint
sys.argv = ["train.py", "--compiler", "torch", "--device", "cpu", "--epochs", "1000000",
            "--save", {str(file)!r}, "--resume", {str(file)!r}]
sys.stdout = open(os.devnull, "w")
epochs = 0
for i in range(10):
    child = os.fork()
    if child == 0:
        os._exit(train.cli.run(train.main))
    started = time.monotonic()
    def written():
        return os.stat({str(file)!r}).st_mtime_ns if os.path.exists({str(file)!r}) else 0
    before = written()
    while written() == before and time.monotonic() < started + 60:
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    now = len(checkpoint.load(Path({str(file)!r}))["history"]["losses"])
    assert now > epochs, (i, now, epochs)
    epochs = now
print("done", file=sys.__stdout__)
"""
    assert run("-c", code).stdout == "done\n"
    assert run("train.py", "--resume", file, "--device", "cpu", "--epochs", "1").stdout.count("after") == 1


@pytest.mark.thorough
def test_damaged_checkpoints(run, tmp_path):
    """Each changed byte and each missing end is noticed; so are files of another kind. One line, exit status 2."""
    good, bad = tmp_path / "good.pt", tmp_path / "bad.pt"
    run("train.py", "--device", "cpu", "--epochs", "1", "--save", good)
    content = good.read_bytes()
    settings = checkpoint.load(good)["settings"]
    assert checkpoint.load(good, settings)["settings"] == {"model": "toy", "seed": 0, "batch": 64, "dtype": "float32"}
    damaged = [content[:i] + bytes([content[i] ^ 0x55]) + content[i + 1 :] for i in range(0, len(content), 53)]
    damaged += [content[:i] for i in range(0, len(content), 997)] + [content + b"x", pickle.dumps(os.system)]
    torch.save({"weights": torch.ones(1)}, bad)
    damaged.append(bad.read_bytes())
    for each in damaged:
        bad.write_bytes(each)
        with pytest.raises(ValueError, match=r"is not a checkpoint of train\.py, or damaged"):
            checkpoint.load(bad)
    done = run("train.py", "--resume", bad, status=2)
    assert "is not a checkpoint of train.py" in done.stderr.splitlines()[-1]
    for change in ({"model": "residual"}, {"seed": 1}):
        with pytest.raises(ValueError, match=f"comes from a run with --{next(iter(change))}"):
            checkpoint.load(good, settings | change)
    with pytest.raises(ValueError, match="cannot read"):
        checkpoint.load(tmp_path / "none.pt")


def test_without_scikit_learn(monkeypatch, capsys):
    import train

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        train.parse(list(RESIDUAL))
    assert "python3 -m pip install scikit-learn" in capsys.readouterr().err


def test_seeds_of_63_bits(monkeypatch):
    """The largest seed that is accepted gives an order of the images, too."""
    pytest.importorskip("sklearn")
    args = argparse.Namespace(batch=359, seed=2**63 - 1, rank=0, world=1)
    task = tasks.residual(torch.device("cpu"), args)
    assert len(list(task.batches(7))) == 4


def set_environment(monkeypatch, **variables):
    """As it is for a process that torchrun has started, or that it has not."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_incomplete_environment(monkeypatch):
    """RANK and WORLD_SIZE that do not come from torchrun are refused: each process would train for itself."""
    import train

    by_torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    set_environment(monkeypatch, **by_torchrun, TORCHELASTIC_RUN_ID="none")
    args = train.parse(["--device", "cpu"])
    assert (args.rank, args.world) == (1, 2)
    set_environment(monkeypatch)
    args = train.parse([])
    assert (args.rank, args.world) == (0, 1)
    for variables in ({"WORLD_SIZE": "2"}, {"RANK": "1"}, {"RANK": "abc"}, by_torchrun):
        set_environment(monkeypatch, **variables)
        with pytest.raises(Exception, match="torchrun has not started this process"):
            train.parse([])


@pytest.mark.thorough
def test_incomplete_environment_is_told(run):
    """Also by a process that would otherwise leave the printing to the first."""
    done = run("train.py", RANK="1", status=1)
    assert "torchrun" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_too_many_processes(monkeypatch, capsys):
    """More than images in a batch, more than GPUs."""
    import train

    numbers = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "99"}
    set_environment(monkeypatch, **numbers, TORCHELASTIC_RUN_ID="none")
    with pytest.raises(SystemExit):
        train.parse([*RESIDUAL, "--batch", "1"])
    assert "--batch 1 leaves some of 2 processes without an image" in capsys.readouterr().err
    monkeypatch.setattr(train.cli, "has_gpu", lambda args: True)
    with pytest.raises(Failure, match=r"99 processes, but \d+ GPU\(s\).*--device cpu"):
        train.parse([])


@pytest.mark.thorough
def test_interrupted(start, tmp_path):
    """Ctrl-C: everything until then is printed and saved."""
    file = tmp_path / "run.json"
    arguments = ("--device", "cpu", "--epochs", "100000000", "--json", file)
    running = start("train.py", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in running.stdout:
        if line.startswith("epoch 100:"):
            break
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in err
    content = json.loads(file.read_text())
    assert content["complete"] is False
    assert len(content["training"][0]["losses"]) > 100
