"""Both programs: help, wrong options, what they import, and the ends that they share. Also lab/'s direction of imports.

The rest is in test_time.py and test_train.py.
"""

import argparse
import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lab import cli, files
from lab.build import Failure

ROOT = Path(__file__).resolve().parent.parent
QUICK = {"time.py": ("--device", "cpu", "--sizes", "100"), "train.py": ("--device", "cpu", "--epochs", "2")}


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
        ("--device", "tpu"): "'tpu' is not a device",
        ("--device", "cuda:99"): "cuda:99 cannot be used",
        ("--dtype", "int8"): "invalid choice: 'int8'",
        ("--sizes", "0"): "not a number of elements",
        ("--sizes", "-5"): "",
        ("--sizes", "2^99"): "not a number of elements",
        ("--sizes", "9" * 5000): "not a number of elements",
        ("--sizes", "many"): "not a number of elements",
        ("--sizes", "2^20..2^10"): "is empty",
        ("--sizes", ""): "no size",
        ("--library", "/no/such/file"): "there is no file",
        ("--library", "README.md", "--compiler", "all"): "cannot be combined",
        ("--json", "/no/such/folder/x.json"): "there is no folder",
        ("--json", "/"): "cannot write /",
        ("--json", "/dev/full"): "No space left",
        ("--json", "x" * 300): "File name too long",
        ("--json", "/proc/x.json"): "cannot write /proc/x.json",
        ("--plot", "/no/such/folder/x.png"): "there is no folder",
        ("--plot", "picture.txt"): "does not end in .png, .pdf or .svg",
        ("--library", "README.md", "--json", "README.md"): "both name",
        ("--compiler", "all", "--sync-study"): "cannot be combined with --compiler all",
    },
    "train.py": {
        ("--epochs", "0"): "start at 1",
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
        ("--save", "x.same", "--json", "x.same"): "both name x.same",
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
def test_without_torch(name, run):
    """-S: no site-packages."""
    done = run("-S", name, status=2, drop=("PYTHONPATH",))
    assert "this Python has no torch" in done.stderr


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
    """Written in one piece; links and permissions stay; no other file is touched, and nothing is left behind."""
    target, link, dangling, long = (tmp_path / name for name in ("a.json", "link", "dangling", "x" * 253))
    neighbour = tmp_path / "a.json.tmp"
    target.write_text("old")
    target.chmod(0o640)
    neighbour.write_text("the user's")
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "new.json")
    for path in (link, dangling, long):
        files.write(path, None)
    assert sorted(tmp_path.iterdir()) == sorted([target, link, dangling, neighbour])
    for path in (link, dangling, long):
        files.write(path, b"new")
        assert path.read_text() == "new"
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert neighbour.read_text() == "the user's"
    assert len(list(tmp_path.iterdir())) == 6
    loop, lost, pipe = (tmp_path / name for name in ("loop", "lost", "pipe"))
    loop.symlink_to(loop)
    lost.symlink_to(tmp_path / "no folder" / "x.json")
    os.mkfifo(pipe)
    files.write(pipe, None)
    with pytest.raises(Failure, match="cannot write"):  # without a reader: an error, and no endless wait
        files.write(pipe, b"x")
    for path, reason in (
        (loop, "Too many levels of symbolic links"),
        (lost, f"there is no folder {tmp_path / 'no folder'}"),
        (tmp_path, "Is a directory"),
        (Path("/dev/full"), "No space left on device"),
    ):
        for content in (None, b"x"):
            with pytest.raises(Failure, match=f"cannot write {path}: {reason}"):
                files.write(path, content)
    assert loop.is_symlink()
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write(pipe, b"x")
    from_us, to_it = os.pipe()  # `--json /dev/stdout | ...`
    files.write(Path(f"/dev/fd/{to_it}"), None)
    files.write(Path(f"/dev/fd/{to_it}"), b"y")
    assert os.read(from_us, 9) == b"y"
    assert os.read(reader, 2) == b"x"
    os.close(reader)


def test_full_disk(tmp_path):
    """A disk that fills up: refused at the start, or one line at the end; no temporary file stays."""
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from lab import files
disk = Path({str(tmp_path)!r})
def attempt(content):
    try: files.write(disk / "a", content)
    except Exception as error: print(error)
attempt(None)
(disk / "ballast").write_bytes(b"x" * 40000)
attempt(b"x" * 100000)
try: (disk / "more").write_bytes(b"x" * 100000)
except OSError: pass
attempt(None)
print(sorted(path.name for path in disk.iterdir()))
"""
    inside = f'mount -t tmpfs -o size=64k tmpfs {tmp_path} && exec {sys.executable} -c "$0"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", inside, code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("needs a user name space, to mount a disk in")
    full = f"cannot write {tmp_path}/a: No space left on device\n"
    assert done.stdout == full * 2 + "['ballast', 'more']\n", done.stderr


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


def shell(command, **env):
    """Run a command line; `$P` is Python."""
    environment = os.environ | {"P": sys.executable} | env
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], check=False, **options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("redirection", "status"),
    [("| head -1", 0), ("2>&1 | head -1", 0), ("2>&-", 0), (">&-", 0), (">&- 2>&- <&-", 0), ("> /dev/full", 1)],
)
@pytest.mark.parametrize("name", QUICK)
def test_lost_streams(name, redirection, status, tmp_path):
    """A reader that leaves, a closed stream, a full disk: the files are written all the same."""
    file = tmp_path / "out.json"
    done = shell(f"$P {name} {' '.join(QUICK[name])} --json {file} {redirection}")
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert ("cannot write to stdout: No space left on device" in done.stderr) == (status == 1)
    assert json.loads(file.read_text())["complete"] is True


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUICK)
def test_without_docstrings(name):
    """python3 -OO removes them."""
    done = shell(f"$P -OO {name} {' '.join(QUICK[name])}")
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUICK)
def test_ctrl_c_during_the_imports(name, start):
    """At several moments after the first: one line, exit status 130."""
    for delay in (0.0, 0.1, 0.3, 0.6):
        process = start(name, "--help", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        maps = Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and "libtorch" not in maps.read_text():  # torch is being imported
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        if process.returncode == 0:  # it was quicker
            break
        assert (process.returncode, err) == (130, f"{name}: error: interrupted\n")
    assert delay > 0


def test_full_gpu(monkeypatch):
    """A GPU that another program has filled: the first use of it fails, before anything is timed."""

    def full(*_, **__):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(argparse.ArgumentTypeError, match="cuda cannot be used: its memory is full; use --device cpu"):
        cli.choose_device(argparse.Namespace(), None)


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUICK)
def test_other_systems(name):
    """Windows and macOS, before anything is imported that they lack; a torch for ROCm."""
    for change, message, status in (
        ("sys.platform = 'darwin'", "add2 needs Linux, and this is darwin", 2),
        ("import torch; torch.version.hip = '6.0'", "was built for ROCm", 1),
    ):
        code = f"import runpy, sys; {change}; sys.argv = [{name!r}]; runpy.run_path({name!r}, run_name='__main__')"
        done = shell(f'$P -c "{code}"')
        assert done.returncode == status
        assert message in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("lab.build.Failure('no such thing')", "no such thing"),
        ("MemoryError()", "out of memory"),
        ("RuntimeError('[enforce] can\\'t allocate memory: you tried')", "Give smaller --sizes"),
        ("RuntimeError('add2: no kernel image is available')", "Cure: "),
        ("RuntimeError('File exists')", None),
        ("RuntimeError('No space left on device')", None),
        ("KeyError('x')", None),
    ],
)
def test_only_known_errors_lose_their_traceback(error, message, monkeypatch, capsys):
    """Others keep it, even if their text matches a symptom; with ADD2_DEBUG=1 all do."""
    import lab.build

    def main():
        raise eval(error, {"lab": lab})

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    if message is None:
        with pytest.raises(Exception, match=r"File exists|No space|x"):
            cli.run(main)
    else:
        assert cli.run(main) == 1
        assert message in capsys.readouterr().err
    monkeypatch.setenv("ADD2_DEBUG", "1")
    with pytest.raises(type(eval(error, {"lab": lab}))):
        cli.run(main)


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


@pytest.fixture(scope="module", params=QUICK)
def imported(request, tmp_path_factory):
    """The files of this project that a cold run imports."""
    name = request.param
    code = f"""
import runpy, sys
from pathlib import Path
sys.argv = [{name!r}, *{QUICK[name]!r}]
try: runpy.run_path({name!r}, run_name="__main__")
except SystemExit as end: assert end.code == 0
paths = [Path(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)]
paths = [path for path in paths if path.is_relative_to({str(ROOT)!r}) and "site-packages" not in path.parts]
print([str(path.relative_to({str(ROOT)!r})) for path in paths])
"""
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path_factory.mktemp("cold"))}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "built" in done.stderr
    return {name, *ast.literal_eval(done.stdout.splitlines()[-1])}


@pytest.mark.thorough
def test_few_files(imported):
    """The program, lab/cli.py, and two of its room; four of lab/build/, and the operator's. An option imports more."""
    rooms = [path.rpartition("/")[0] for path in imported]
    found = [rooms.count(room) for room in ("", "lab", "lab/build", "lab/bench", "lab/train", "add2")]
    assert found in ([1, 1, 4, 2, 0, 4], [1, 1, 4, 0, 2, 4]), sorted(imported)
