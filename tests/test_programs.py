"""The two programs as a user types them: help, and what time.py refuses. The rest: test_time.py, test_train.py."""

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
