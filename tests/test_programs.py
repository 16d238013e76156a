"""Both programs: wrong options, files, and how they end. Also lab/'s direction of imports.

The rest is in test_time.py and test_train.py.
"""

import ast
import importlib.util
import json
import os
from pathlib import Path

import pytest

from lab import cli, files
from lab.build import Failure

ROOT = Path(__file__).resolve().parent.parent
WRONG = {
    "time.py": {
        ("--compiler", "make"): "invalid choice: 'make'",
        ("--device", "tpu"): "tpu",
        ("--device", "cuda:99"): "cuda:99 cannot be used",
        ("--sizes", "0"): "not a number of elements",
        ("--sizes", "2^99"): "not a number of elements",
        ("--sizes", "2^20..2^10"): "is empty",
        ("--library", "/no/such/file"): "there is no file",
        ("--library", "README.md", "--compiler", "all"): "cannot be combined",
        ("--json", "/no/such/folder/x.json"): "there is no folder",
        ("--json", "/dev/full"): "cannot write /dev/full",
        ("--plot", "picture.txt"): "does not end in .png, .pdf or .svg",
    },
    "train.py": {
        ("--epochs", "0"): "start",
        ("--seed", str(2**63)): "from 0 to 2^63 - 1",
        ("--compiler", "all"): "invalid choice",
        ("--compiler", "torch", "--check"): "with a build of add2",
        ("--cuda-graph", "--device", "cpu"): "a GPU",
        ("--save", "/no/such/folder/x.pt"): "there is no folder",
        ("--resume", "/no/such/file.pt"): "cannot read",
    },
}


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


def test_files(tmp_path):
    """Renamed into place, also behind a link; a test of the path leaves no file; a failure leaves what was there."""
    target, link = tmp_path / "a.json", tmp_path / "link"
    link.symlink_to(target)
    files.write(link, None)
    assert list(tmp_path.iterdir()) == [link]
    files.write(link, b"new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    for path in (tmp_path, tmp_path / "no folder" / "x.json", Path("/dev/full")):
        for content in (None, b"x"):
            with pytest.raises(Failure, match=f"cannot write {path}: "):
                files.write(path, content)
    assert sorted(tmp_path.iterdir()) == [target, link]


def test_json_has_one_row_a_line():
    content = {"environment": {"x": 1.23456789}, "rows": [{"a": 12345678.9, "b": [1 / 3]}, {"a": 2**40}], "ok": True}
    text = files.to_json(content).decode()
    rounded = {"environment": {"x": 1.235}, "rows": [{"a": 12350000.0, "b": [0.3333]}, {"a": 2**40}], "ok": True}
    assert json.loads(text) == rounded
    assert len(text.splitlines()) == 8


def test_only_known_errors_lose_their_traceback(capsys):
    """The others keep it, even if their text matches a symptom."""

    def end(error):
        def main():
            raise error

        return cli.run(main), capsys.readouterr().err

    assert end(Failure("no such thing"))[0] == 1
    assert "Cure: " in end(RuntimeError("add2: no kernel image is available"))[1]
    assert end(KeyboardInterrupt())[0] == 130
    with pytest.raises(RuntimeError, match="no kernel image"):
        end(RuntimeError("no kernel image is available"))


def test_imports_run_one_way():
    """programs, then bench or train, then cli and files, then build, then toolchain; the operator does not use lab."""
    level = {"toolchain": 0, "build": 1, "files": 2, "cli": 3, "doctor": 3, "bench": 4, "train": 4}
    for path in [*(ROOT / "lab").rglob("*.py"), *(ROOT / "add2").glob("*.py"), *(ROOT / "kernel").glob("*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                base = parts[: len(parts) - node.level] if node.level else ()
                names = [[*base, *filter(None, [node.module, each.name])] for each in node.names]
                found = [".".join(name).split(".") for name in names]
            else:
                found = [each.name.split(".") for each in getattr(node, "names", []) if isinstance(node, ast.Import)]
            for name in found:
                if name[0] == "lab" and len(name) > 1:
                    assert parts[0] == "lab", path
                    own, other = parts[1], name[1]
                    assert own == other or level[other] < level[own], (path, name)
