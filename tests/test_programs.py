"""time.py and train.py as a user types them: wrong usage, help, and train.py. tests/test_time.py has time.py."""

import pytest

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
    ("--json", "/"): "cannot write /",
    ("--csv", "/proc/x.csv"): "cannot write /proc/x.csv",
    ("--trace", "/no/such/folder/x.json"): "there is no folder",
    ("--plot", "/no/such/folder/x.png"): "there is no folder",
    ("--plot", "picture.txt"): "no .png, .pdf or .svg",
    ("--against", "/no/such/file.json"): "cannot read",
    ("--against", "README.md"): "is not what",
    ("--compiler", "all", "--sync-study"): "of one build",
    ("--device", "cpu", "--timeline", "x.png"): "",
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
