"""train.py: the same losses as with torch's own add, by one process and by several, interrupted and resumed."""

import argparse
import io
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch

import train
from lab import build, cli
from lab.train import loop, processes, tasks

ROOT = Path(__file__).resolve().parent.parent
RESIDUAL = ("--model", "residual", "--device", "cpu")


def trained(run, tmp_path, *arguments):
    """The rows of --json, one for each add."""
    run("train.py", *arguments, "--json", tmp_path / "run.json")
    return json.loads((tmp_path / "run.json").read_text())["training"]


def test_toy(run):
    """The printed losses, which fall to nearly zero."""
    lines = [line for line in run("train.py").stdout.splitlines() if line.startswith("epoch")]
    values = [float(re.fullmatch(r"epoch +\d+: loss = (.*)", line)[1]) for line in lines]
    assert (len(lines), lines[0].split(":")[0], lines[-1].split(":")[0]) == (20, "epoch   0", "epoch 475")
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.01 * values[0]


@pytest.mark.thorough
@pytest.mark.anywhere
def test_residual(run, tmp_path):
    """It learns, with the losses of torch's own add, bit for bit; compiled and in bfloat16 with nearly the same."""
    ours, torchs = trained(run, tmp_path, *RESIDUAL, "--check", "--epochs", "2")
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["settings"] == {"model": "residual", "seed": 0, "batch": 64, "dtype": "float32"}
    assert ours["accuracies"][-1] >= 0.9
    assert ours["losses"] == torchs["losses"]
    assert len(set(ours["losses"])) == len(ours["losses"]) == len(ours["us_per_step"]) == 2
    [compiled] = trained(run, tmp_path, *RESIDUAL, "--compile", "--epochs", "1")  # a graph break would be an error
    assert compiled["losses"] == pytest.approx(ours["losses"][:1], rel=0.02)
    rounded, torchs = trained(run, tmp_path, *RESIDUAL, "--dtype", "bfloat16", "--check", "--epochs", "1")
    assert rounded["losses"] == torchs["losses"] != ours["losses"][:1]
    assert rounded["losses"] == pytest.approx(ours["losses"][:1], rel=0.05)


def test_compare(capsys):
    """A NaN is a difference, wherever it comes; compiled, only the first epoch's loss counts. Noise is marked."""
    exact, compiled = argparse.Namespace(compile=False), argparse.Namespace(compile=True)
    ours, torchs = (loop.History(losses, [], [1.0]) for losses in ([1.0, 2.0, 4.0], [1.0, 2.0, 3.0]))
    assert train.compare(exact, ours, ours)
    assert not train.compare(exact, ours, torchs)
    assert train.compare(compiled, ours, torchs)
    ours.losses[0] = math.nan
    assert not train.compare(compiled, ours, torchs)
    assert capsys.readouterr().out.count("time per step: 1.000~ of torch's") == 4  # of one portion
    steady = [10 + i / 10 for i in range(20)]
    noisy = {"steady": steady, "with bursts": [*steady, 20.0, 30.0], "of one portion": [8.0] * 25}
    noisy = {name: loop.History(us_per_step=times).is_noisy() for name, times in noisy.items()}
    assert noisy == {"steady": False, "with bursts": True, "of one portion": True}
    ours.us_per_step = torchs.us_per_step = steady
    train.compare(exact, ours, torchs)
    assert "time per step: 1.000 of torch's" in capsys.readouterr().out


@pytest.mark.thorough
def test_cuda_graph(cuda, run, tmp_path):
    graph, torchs = trained(run, tmp_path, "--cuda-graph", "--check")
    [eager] = trained(run, tmp_path)
    assert graph["losses"] == torchs["losses"] == eager["losses"]


@pytest.mark.thorough
@pytest.mark.anywhere
def test_several_processes(run, tmp_path):
    """They have the losses of one process except for rounding, and only one prints. Few steps, as each enlarges a
    difference; a batch that three cannot share evenly."""
    arguments = (*RESIDUAL, "--epochs", "2", "--batch", "359")
    [single] = trained(run, tmp_path, *arguments)
    file = tmp_path / "three.json"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")
    told = run(*torchrun, ROOT / "train.py", *arguments, "--json", file).stdout
    content = json.loads(file.read_text())
    assert content["processes"] == 3
    assert content["training"][0]["losses"] == pytest.approx(single["losses"], rel=2e-3)  # the file has four digits
    assert content["training"][0]["accuracies"] == pytest.approx(single["accuracies"], abs=0.01)
    assert told.count("epoch   0: loss") == 1


def test_more_processes_than_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(build.Failure, match=r"has no GPU.*--nproc-per-node 2.*--device cpu"):
        processes.connect(argparse.Namespace(), on_gpus=True)


def assert_equal(first, second):
    """Two checkpoints hold the same, except for the time that it took."""
    first, second = (torch.load(path, weights_only=True) for path in (first, second))
    assert first["settings"] == second["settings"]
    assert first["history"] | {"us_per_step": 0} == second["history"] | {"us_per_step": 0}
    torch.testing.assert_close(first["network"], second["network"], rtol=0, atol=0)
    torch.testing.assert_close(first["optimizer"]["state"], second["optimizer"]["state"], rtol=0, atol=0)


@pytest.mark.thorough
@pytest.mark.anywhere
def test_checkpoints(run, tmp_path):
    """Resumed: the same bits as after an unbroken run."""
    broken, unbroken = tmp_path / "broken.pt", tmp_path / "unbroken.pt"
    arguments = [*RESIDUAL, "--batch", "256"]
    run("train.py", *arguments, "--epochs", "1", "--save", broken)
    done = run("train.py", *arguments, "--epochs", "3", "--resume", broken, "--save", broken)
    assert "epoch   0" not in done.stdout
    run("train.py", *arguments, "--epochs", "3", "--save", unbroken)
    assert_equal(broken, unbroken)


@pytest.fixture
def end(monkeypatch, capsys):
    """Run train.py with torch's own add; returns the exit status, stdout and stderr."""

    def end(*options):
        monkeypatch.setattr(sys, "argv", ["train.py", "--compiler", "torch", "--device", "cpu", *map(str, options)])
        status = cli.run(train.main)
        told = capsys.readouterr()
        return status, told.out, told.err

    return end


def test_a_finished_run_started_again(end, tmp_path, monkeypatch):
    """It says its result again, and writes another checkpoint; a symbolic link stays one, and its target is written.
    A first run may name the file that it will go on from, too."""
    monkeypatch.chdir(tmp_path)
    file, link = Path("file.pt"), Path("link.pt")
    assert end("--epochs", "30", "--save", file, "--resume", file)[0] == 0
    link.symlink_to(tmp_path / "target.pt")
    status, out, _ = end("--epochs", "30", "--resume", file, "--save", link)
    assert (status, "after 30 epochs" in out, link.is_symlink()) == (0, True, True)
    assert_equal(file, tmp_path / "target.pt")


def edited(content):
    """Copies of what torch.load() has read, each with one value changed or left out."""
    for name, value in content.items():
        yield {key: each for key, each in content.items() if key != name}
        odd = [None, "a", [], {}, torch.ones(3)]
        if isinstance(value, dict):
            odd += edited(value)
        if isinstance(value, list):
            odd += [[*value, 1.0], ["a"] * len(value)]
        yield from (content | {name: each} for each in odd if repr(each) != repr(value))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Using a non-tuple")  # a tensor in the place of a dict
def test_resume_from_another_file(end, tmp_path):
    """One line and exit status 1, also where one value of a checkpoint was edited."""
    file = tmp_path / "file.pt"
    end("--epochs", "30", "--save", file)
    right, found = file.read_bytes(), torch.load(file, weights_only=True)
    groups = found["optimizer"].pop("param_groups")  # of which nothing is used
    wrong = {b"": "no checkpoint", right[:1000]: "no checkpoint", b"a text": "no checkpoint"}
    no_time = found["history"] | {"us_per_step": [0.0] * 30}
    for other in ([], {}, found | {"history": no_time}, *edited(found)):
        if isinstance(other, dict) and isinstance(other.get("optimizer"), dict):
            other["optimizer"] = other["optimizer"] | {"param_groups": groups}
        torch.save(other, buffer := io.BytesIO())
        wrong[buffer.getvalue()] = "give the same settings" if "settings" in other else "no checkpoint"
    for content, word in wrong.items():
        file.write_bytes(content)
        status, _, err = end("--epochs", "31", "--resume", file)
        assert (status, len(err.splitlines())) == (1, 1), err
        assert "no checkpoint" in err or word in err
    file.write_bytes(right)
    status, _, err = end("--epochs", "5", "--resume", file)
    assert (status, "has 30 epochs" in err) == (1, True)


def test_resume_with_edited_momentum(tmp_path):
    """The residual network's checkpoint has momentum, too: each parameter's, of its shape."""
    args = argparse.Namespace(resume=tmp_path / "file.pt", save=tmp_path / "file.pt", rank=0, epochs=1)
    vars(args).update(model="residual", seed=0, batch=64, dtype="float32")
    task = tasks.Task(tasks.residual_network, list, torch.sum, accuracy=len, momentum=0.9)
    network = task.network(torch.add)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    network(torch.ones(1, 1, 8, 8)).sum().backward()
    optimizer.step()
    loop.save(args, network, optimizer, loop.History([1.0], [0.5], [9.0]))
    assert loop.resume(args, task, network, optimizer) == loop.History([1.0], [0.5], [9.0])
    found = torch.load(args.resume, weights_only=True)
    state = found["optimizer"]["state"]
    for wrong in ({}, state | {0: {}}, state | {0: {"momentum_buffer": torch.ones(3)}}, state | {99: state[0]}):
        torch.save(found | {"optimizer": {"state": wrong}}, args.resume)
        with pytest.raises(build.Failure, match="no checkpoint"):
            loop.resume(args, task, network, optimizer)
