"""time.py and train.py as a user types them."""

import json

import pytest
import torch

WRONG = {
    ("--compiler", "make"): "invalid choice: 'make'",
    ("--no-such-flag",): "unrecognized arguments",
    ("--device", "tpu"): "'tpu' is not a device",
    ("--device", "cuda:99"): "cuda:99 is not there",
    ("--dtype", "int8"): "invalid choice: 'int8'",
    ("--sizes", "0"): "not a number of elements",
    ("--sizes", "-5"): "",
    ("--sizes", "2^99"): "not a number of elements",
    ("--sizes", "many"): "not a number of elements",
    ("--sizes", "2^20..2^10"): "is empty",
    ("--sizes", ""): "no size",
    ("--json", "/no/such/folder/x.json"): "there is no folder",
    ("--compiler", "cmake", "--binding", "pybind11"): "no pybind11 binding",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage(arguments, run):
    done = run("time.py", *arguments, status=2)
    assert WRONG[arguments] in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("program", ["time.py", "train.py"])
def test_help(program, run):
    done = run(program, "--help")
    assert "--compiler" in done.stdout
    assert "--device" in done.stdout


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
    clocks = {"host", "gpu"} if torch.cuda.is_available() else {"host"}
    for row in content["results"]:
        assert row["clock"] in clocks
        assert row["bytes"] == 3 * row["n"] * getattr(torch, row["dtype"]).itemsize
        assert 0 < row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["samples"] >= 10
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3)
        assert f"{row['gb_per_s']:.1f}" in done.stdout or row["clock"] == "host"
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
    for name in ("jit", "setup", "cmake"):
        assert f"add2 ({name})" in done.stdout


def test_time_finds_a_wrong_result(run, project, tmp_path):
    """A kernel that computes something else: exit status 1, nothing timed, and the file says so."""
    source = project / "kernel" / "add2_cpu.cpp"
    source.write_text(source.read_text().replace("x[i] + y[i]", "x[i] - y[i]"))
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


def losses(run, compiler, *arguments):
    done = run("train.py", "--compiler", compiler, *arguments)
    return [line for line in done.stdout.splitlines() if line.startswith("epoch")]


def test_train(run):
    lines = losses(run, "jit")
    assert len(lines) == 20
    assert lines[0].startswith("epoch   0: loss = ")
    assert lines[-1].startswith("epoch 475: loss = ")
    values = [float(line.split("=")[1]) for line in lines]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.01 * values[0]


@pytest.mark.parametrize("compiler", ["jit", "setup", "cmake"])
def test_train_as_with_torch(compiler, run):
    """The same losses as with torch's own add, to the last bit, on every device."""
    code = f"""
import torch, train
from lab import compilers
compilers.load({compiler!r})
import add2
for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
    ours, torchs = (
        [loss.item() for loss in train.train(add, torch.device(device), 60, seed=3)] for add in (add2.add2, torch.add)
    )
    assert ours == torchs
    assert len(set(ours)) == 60
print("done")
"""
    assert run("-c", code).stdout == "done\n"
    assert losses(run, compiler, "--epochs", "60", "--seed", "7") == losses(
        run, "torch", "--epochs", "60", "--seed", "7"
    )


@pytest.mark.parametrize("arguments", [("--epochs", "0"), ("--epochs", "x"), ("--compiler", "all")], ids=" ".join)
def test_train_wrong_usage(arguments, run):
    run("train.py", *arguments, status=2)
