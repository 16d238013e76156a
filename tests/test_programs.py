"""Both programs: help, wrong options, what they import, and the ends that they share. Also lab/'s direction of imports.

The rest is in test_time.py and test_train.py.
"""

import ast
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from lab import cli, files
from lab.build import Failure

ROOT = Path(__file__).resolve().parent.parent


def program(name):
    """A program as a module, under another name than Python's own module `time`."""
    spec = importlib.util.spec_from_file_location(f"program_{name[:-3]}", ROOT / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- arguments: all in this process


WRONG = {
    "time.py": {
        ("--compiler", "make"): "invalid choice: 'make'",
        ("--no-such-flag",): "unrecognized arguments",
        ("--device", "tpu"): "tpu cannot be used",
        ("--device", "cuda:99"): "cuda:99 cannot be used",
        ("--dtype", "int8"): "invalid choice: 'int8'",
        ("--sizes", "0"): "not a number of elements",
        ("--sizes", "-5"): "",
        ("--sizes", "2^99"): "not a number of elements",
        ("--sizes", "9" * 5000): "not a number of elements",
        ("--sizes", "many"): "not a number of elements",
        ("--sizes", "2^20..2^10"): "is empty",
        ("--sizes", ""): "not a number of elements",
        ("--library", "/no/such/file"): "there is no file",
        ("--library", "README.md", "--compiler", "all"): "cannot be combined",
        ("--json", "/no/such/folder/x.json"): "there is no folder",
        ("--json", "/"): "cannot write /",
        ("--json", "/dev/null"): "not a regular file",
        ("--json", "x" * 300): "File name too long",
        ("--json", "/proc/x.json"): "cannot write /proc/x.json",
        ("--plot", "/no/such/folder/x.png"): "there is no folder",
        ("--plot", "picture.txt"): "does not end in .png, .pdf or .svg",
        ("--compiler", "all", "--kernels"): "cannot be combined with --compiler all",
    },
    "train.py": {
        ("--epochs", "0"): "starts at 1",
        ("--epochs", "x"): "invalid int value",
        ("--batch", "-1"): "",
        ("--seed", str(2**63)): "from 0 to 2^63 - 1",
        ("--compiler", "all"): "invalid choice",
        ("--compiler", "torch", "--check"): "with a build of add2",
        ("--check", "--save", "x.pt"): "without --save",
        ("--model", "residual", "--cuda-graph"): "is for --model toy",
        ("--cuda-graph", "--device", "cpu"): "a GPU",
        ("--plot", "/no/such/folder/x.png"): "there is no folder",
        ("--save", "/no/such/folder/x.pt"): "there is no folder",
        ("--plot", "x.txt"): "does not end in .png, .pdf or .svg",
        ("--resume", "/no/such/file.pt"): "cannot read",
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage(name, capsys, tmp_path, monkeypatch):
    """One line on stderr, exit status 2, and no file where the output would have gone."""
    (tmp_path / "README.md").write_text("no JSON")
    monkeypatch.chdir(tmp_path)
    parse = program(name).parse
    for arguments, message in WRONG[name].items():
        with pytest.raises(SystemExit) as end:
            parse(list(arguments))
        told = capsys.readouterr()
        assert (end.value.code, told.out) == (2, ""), arguments
        assert message in told.err.splitlines()[-1], (arguments, told.err)
    assert os.listdir(tmp_path) == ["README.md"]


def test_pictures_need_matplotlib(monkeypatch, capsys, tmp_path):
    """Said at the start, before anything is built."""
    parse = program("time.py").parse
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        parse(["--plot", str(tmp_path / "x.png")])
    assert "python3 -m pip install matplotlib" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", WRONG)
def test_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        program(name).parse(["--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert "--compiler" in told
    assert "--device" in told


# --- files


def test_output_files(tmp_path):
    """Renamed into place; a link stays one; a device stays what it is; nothing is left behind."""
    target, link = tmp_path / "a.json", tmp_path / "link"
    link.symlink_to(target)
    files.write(link, None)
    assert list(tmp_path.iterdir()) == [link]
    for content in (b"old", b"new"):
        files.write(link, content)
        assert target.read_bytes() == content
    assert link.is_symlink()
    for path, reason in (
        (tmp_path / "none" / "x.json", f"there is no folder {tmp_path / 'none'}"),
        (tmp_path, "it exists, and is not a regular file"),
        (Path("/dev/null"), "it exists, and is not a regular file"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        for content in (None, b"x"):
            with pytest.raises(Failure, match=f"cannot write {path}: {reason}"):
                files.write(path, content)
    assert sorted(tmp_path.iterdir()) == [target, link]


def test_json_has_one_row_a_line():
    content = {"environment": {"x": 1.23456789}, "rows": [{"a": 12345678.9, "b": [1 / 3]}, {"a": 2**40}], "ok": True}
    text = files.to_json(content).decode()
    assert json.loads(text) == {
        "environment": {"x": 1.235},
        "rows": [{"a": 12350000.0, "b": [0.3333]}, {"a": 2**40}],
        "ok": True,
    }
    assert len(text.splitlines()) == 8
    assert json.loads(files.to_json([content, content])) == [json.loads(text)] * 2


# --- how the programs end


def test_only_known_errors_lose_their_traceback(capsys):
    """Failure, and the operator's words for an error of CUDA: one line and a cure. Others keep it."""

    def end(error):
        def main():
            raise error

        return cli.run(main), capsys.readouterr().err

    assert end(Failure("no such thing")) == (1, f"{Path(sys.argv[0]).name}: error: no such thing\n")
    assert "Cure: " in end(RuntimeError("add2: no kernel image is available"))[1]
    assert end(KeyboardInterrupt())[0] == 130
    for error in (RuntimeError("no kernel image is available"), KeyError("x")):
        with pytest.raises(type(error)):
            end(error)


# --- imports


def imports(path):
    """The files of the project that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if node.level else ROOT
            folder = base.joinpath(*(node.module or "").split("."))
            found |= {folder / alias.name for alias in node.names} | {folder}
        elif isinstance(node, ast.Import):
            found |= {ROOT.joinpath(*alias.name.split(".")) for alias in node.names}
    files = {path.with_suffix(".py") for path in found} | {path / "__init__.py" for path in found}
    return {file for file in files if file.is_file() and file.is_relative_to(ROOT / "lab")}


def room(path):
    part = path.relative_to(ROOT / "lab").parts[0]
    return part if part in ("bench", "train", "build") else ""


def test_imports_run_one_way():
    """build knows neither bench nor train, bench and train not each other; nothing imports in a circle."""
    graph = {path: imports(path) for path in (ROOT / "lab").rglob("*.py")}
    assert {room(path) for path in graph} == {"", "bench", "train", "build"}
    for path, found in graph.items():
        allowed = {"bench": {"bench", "build"}, "train": {"train", "build"}}.get(room(path))
        if allowed:
            assert {room(other) for other in found} - {""} <= allowed, path
    assert {
        other for path in graph if room(path) == "build" for other in graph[path] if room(other) != "build"
    } == set()
    for name in ("cli.py", "files.py"):
        assert {room(path) for path in graph[ROOT / "lab" / name]} <= {"", "build"}
    left = {path: found - {path} for path, found in graph.items()}
    packages = {path for path in graph if path.name == "__init__.py"}  # a package imports its files, and they it
    while free := [path for path, found in left.items() if not (found - packages) & left.keys()]:
        for path in free:
            del left[path]
    assert left == {}
