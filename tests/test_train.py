"""train.py as a user types it: the toy and the residual network, alone and with others, interrupted and resumed."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
RESIDUAL = ("--model", "residual", "--device", "cpu")


def losses(run, compiler, *arguments):
    done = run("train.py", "--compiler", compiler, *arguments)
    return [line for line in done.stdout.splitlines() if line.startswith("epoch")]


def train(run, tmp_path, *arguments, **env):
    """What --json says of a run."""
    file = tmp_path / "run.json"
    run("train.py", *arguments, "--json", file, **env)
    return json.loads(file.read_text())


def test_toy(run):
    lines = losses(run, "jit")
    assert len(lines) == 20
    assert re.fullmatch(r"epoch   0: loss = 2\d{3}\.\d{3}", lines[0])
    assert lines[-1].startswith("epoch 475: loss = ")
    values = [float(line.split("=")[1]) for line in lines]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.01 * values[0]


@pytest.mark.parametrize("compiler", ["jit", "setup", "cmake"])
def test_toy_as_with_torch(compiler, run):
    """The same losses as with torch's own add, to the last bit, on every device."""
    code = f"""
import torch, train
from lab import build
build.load({compiler!r})
import add2
for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
    args = train.parse(["--epochs", "60", "--seed", "3"])
    ours, torchs = (
        list(train.train(train.TOY, add, torch.device(device), args))[-1].losses for add in (add2.add2, torch.add)
    )
    assert ours == torchs
    assert len(set(ours)) == 60
print("done")
"""
    assert run("-c", code).stdout == "done\n"
    assert losses(run, compiler, "--epochs", "60", "--seed", "7") == losses(
        run, "torch", "--epochs", "60", "--seed", "7"
    )


def test_residual(run, tmp_path):
    """It learns; and --check finds the losses of torch's own add, bit for bit, on whatever device there is."""
    picture = tmp_path / "curves.png"
    content = train(run, tmp_path, "--model", "residual", "--check", "--plot", picture)
    ours, torchs = content["training"]
    assert ours["accuracies"][-1] >= 0.97
    assert ours["losses"] == torchs["losses"]
    assert len(set(ours["losses"])) == len(ours["losses"]) == len(ours["us_per_step"]) == 20
    assert content["settings"] == {"model": "residual", "seed": 0, "batch": 64, "dtype": "float32"}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_check_notices_a_wrong_operator(run):
    code = """
import sys, train, add2_wrong
sys.argv = ["train.py", "--check", "--epochs", "30", "--device", "cpu"]
sys.exit(train.report.run(train.main))
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


@pytest.mark.parametrize("model", ["toy", "residual"])
def test_compiled(model, run, tmp_path):
    """torch.compile takes the whole network (it would be an error if it broke), with about the same losses."""
    content = train(run, tmp_path, "--model", model, "--compile", "--check", "--epochs", "2")
    eager = train(run, tmp_path, "--model", model, "--epochs", "2")["training"][0]["losses"]
    assert content["training"][0]["losses"] == pytest.approx(eager, rel=0.02)


def test_bfloat16(run, tmp_path):
    """By autocast: other losses than in float32, though not by much; with add2 the same as with torch's own add."""
    content = train(run, tmp_path, "--model", "residual", "--dtype", "bfloat16", "--check", "--epochs", "2")
    exact = train(run, tmp_path, "--model", "residual", "--epochs", "2")["training"][0]["losses"]
    found = content["training"][0]["losses"]
    assert found == content["training"][1]["losses"]
    assert found != exact
    assert found == pytest.approx(exact, rel=0.05)


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


@pytest.mark.parametrize("arguments", [("--epochs", "50", "--device", "cpu"), (*RESIDUAL, "--epochs", "3")], ids=str)
def test_two_processes(arguments, run, tmp_path, monkeypatch):
    """They build once, share the data out, and have the losses of one process but for rounding; one of them speaks.

    Few steps, since each makes a difference by rounding larger; and a batch that two cannot share in halves.
    """
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    started = together(2, *arguments, "--batch", "359", "--json", tmp_path / "pair.json")
    out, err = started.communicate(timeout=300)
    assert started.returncode == 0, err
    content = json.loads((tmp_path / "pair.json").read_text())
    assert content["processes"] == 2
    alone = train(run, tmp_path, *arguments, "--batch", "359")
    pair, alone = content["training"][0], alone["training"][0]
    assert pair["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    assert pair["accuracies"] == pytest.approx(alone["accuracies"], abs=0.01)
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


def test_a_process_dies(tmp_path):
    """The others end, with a message; they do not wait for ever."""
    file = tmp_path / "checkpoint.pt"
    pair = together(2, *RESIDUAL, "--epochs", "10000", "--save", file)
    begun(file)
    os.kill(workers(pair)[1], signal.SIGKILL)
    _, err = pair.communicate(timeout=120)
    assert pair.returncode != 0
    assert "another one has ended" in err or "Signal 9 (SIGKILL)" in err
    assert 'train.py", line' not in err  # torchrun's own traceback is not ours


def test_torchrun_restarts(run, tmp_path):
    """With --max-restarts the run goes on from its checkpoint, to the weights of an unbroken one."""
    broken, unbroken = tmp_path / "broken.pt", tmp_path / "unbroken.pt"
    arguments = [*RESIDUAL, "--epochs", "8", "--batch", "256"]
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
    """Two checkpoints hold the same, but for the time that it took."""
    first, second = (torch.load(path, weights_only=True) for path in (first, second))
    assert first["settings"] == second["settings"]
    for name in ("losses", "accuracies"):
        assert first["history"][name] == second["history"][name]
    assert all(torch.equal(first["network"][name], tensor) for name, tensor in second["network"].items())
    for state, other in zip(*(c["optimizer"]["state"].values() for c in (first, second)), strict=True):
        assert torch.equal(state["momentum_buffer"], other["momentum_buffer"])


def test_resume(run, tmp_path):
    """Bit for bit where an unbroken run comes to."""
    broken, unbroken = tmp_path / "broken.pt", tmp_path / "unbroken.pt"
    arguments = [*RESIDUAL, "--batch", "256"]
    run("train.py", *arguments, "--epochs", "2", "--save", broken)
    done = run("train.py", *arguments, "--epochs", "5", "--resume", broken, "--save", broken)
    assert "epoch   0" not in done.stdout
    run("train.py", *arguments, "--epochs", "5", "--save", unbroken)
    assert_equal(broken, unbroken)
    again = run("train.py", *arguments, "--epochs", "5", "--resume", broken)
    assert "after 5 epochs" in again.stdout


def test_killed_while_saving(run, tmp_path):
    """Twenty times, at moments of chance; a whole checkpoint each time, and the next run goes on from it."""
    file = tmp_path / "checkpoint.pt"
    code = f"""
import os, random, signal, sys, time, torch
import train
sys.argv = ["train.py", "--compiler", "torch", "--device", "cpu", "--epochs", "1000000",
            "--save", {str(file)!r}, "--resume", {str(file)!r}]
sys.stdout = open(os.devnull, "w")
epochs = 0
for i in range(20):
    child = os.fork()
    if child == 0:
        os._exit(train.report.run(train.main))
    started = time.monotonic()
    def written():
        return os.stat({str(file)!r}).st_mtime_ns if os.path.exists({str(file)!r}) else 0
    before = written()
    while written() == before and time.monotonic() < started + 60:
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    now = len(torch.load({str(file)!r}, weights_only=True)["history"]["losses"])
    assert now > epochs, (i, now, epochs)
    epochs = now
print("done", file=sys.__stdout__)
"""
    assert run("-c", code).stdout == "done\n"
    assert run("train.py", "--resume", file, "--device", "cpu", "--epochs", "1").stdout.count("after") == 1


def test_bad_checkpoint(run, tmp_path):
    good, cut, code, other = (tmp_path / name for name in ("good.pt", "cut.pt", "code.pt", "other.pt"))
    run("train.py", "--device", "cpu", "--epochs", "1", "--save", good)
    cut.write_bytes(good.read_bytes()[:-1000])
    code.write_bytes(pickle.dumps(os.system))
    torch.save({"weights": torch.ones(1)}, other)
    for file in (cut, code, other):
        assert "is not a whole checkpoint" in run("train.py", "--resume", file, status=2).stderr
    assert "cannot read" in run("train.py", "--resume", tmp_path / "none.pt", status=2).stderr
    for arguments in (["--model", "residual"], ["--seed", "1"]):
        done = run("train.py", *arguments, "--resume", good, status=2)
        assert f"{good} is of a run with {arguments[0]}" in done.stderr


WRONG = {
    ("--epochs", "0"): "not a whole number from 1 on",
    ("--epochs", "x"): "not a whole number from 1 on",
    ("--batch", "-1"): "",
    ("--compiler", "all"): "invalid choice",
    ("--compiler", "torch", "--check"): "with a build of add2",
    ("--check", "--save", "x.pt"): "without --save",
    ("--model", "residual", "--cuda-graph"): "is for --model toy",
    ("--cuda-graph", "--device", "cpu"): "a GPU",
    ("--model", "residual", "--plot", "/no/such/folder/x.png"): "there is no folder",
    ("--save", "/no/such/folder/x.pt"): "there is no folder",
    ("--plot", "x.txt"): "no .png, .pdf or .svg",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage(arguments, run):
    done = run("train.py", *arguments, status=2)
    assert WRONG[arguments] in done.stderr
    assert done.stdout == ""


def test_without_scikit_learn(run, tmp_path):
    (tmp_path / "sklearn.py").write_text("raise ImportError('No module named sklearn')")
    done = run("train.py", "--model", "residual", PYTHONPATH=str(tmp_path), status=2)
    assert "python3 -m pip install scikit-learn" in done.stderr


def test_more_processes_than_images(run):
    done = run("train.py", *RESIDUAL, "--batch", "1", WORLD_SIZE="2", RANK="0", status=2)
    assert "--batch 1 leaves some of 2 processes without an image" in done.stderr


def test_more_processes_than_gpus(run):
    code = "from lab import processes; print(processes.complaint('cuda'))"
    said = run("-c", code, LOCAL_WORLD_SIZE="99").stdout
    assert re.match(r"99 processes, but \d+ GPU\(s\).*--device cpu", said)
    if torch.cuda.is_available():
        done = run("train.py", LOCAL_WORLD_SIZE="99", WORLD_SIZE="99", RANK="0", status=2)
        assert "99 processes" in done.stderr


def test_interrupted(start, tmp_path):
    """Ctrl-C: what was done is told and saved."""
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
