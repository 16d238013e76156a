"""The lessons' programs: options, files of results, and how they end. test_examples.py has those that need no GPU."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from lab import lesson

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROGRAMS = {  # those that draw: results that they have written, and others
    "add_rms_norm/bench.py": ("h200-add-rms-norm", "h200-add-rms-norm-steps"),
    "add_rms_norm/ladder.py": ("h200-add-rms-norm-steps", "h200-add-rms-norm"),
    "int4_linear/bench.py": ("h200-int4", "h200-int4-steps"),
}


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.parametrize("program", PROGRAMS)
def test_files_are_tested_first(program, run, tmp_path):
    path, own, other = EXAMPLES / program, *PROGRAMS[program]
    (tmp_path / "no.json").write_text("[1]")
    assert "there is no folder" in run(path, "--json", tmp_path / "missing" / "file.json", status=2).stderr
    assert "holds no results of" in run(path, "--from", f"docs/results/{other}.json", status=2).stderr
    assert "cannot read results" in run(path, "--from", tmp_path / "no.json", status=2).stderr
    run(path, "--from", f"docs/results/{own}.json", "--plot", tmp_path / "x.svg")
    assert b"NVIDIA H200" in (tmp_path / "x.svg").read_bytes()
    if not torch.cuda.is_available():  # it measures nothing, and leaves an earlier file alone
        assert "needs a GPU" in run(path, "--json", tmp_path / "no.json", status=1).stderr
        assert (tmp_path / "no.json").read_text() == "[1]"


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure for minutes")
@pytest.mark.parametrize("program", ["*/bench.py", "*/ladder.py", "int4_linear/model.py", "llama/compare.py"])
def test_without_a_gpu(program, run):
    for path in EXAMPLES.glob(program):
        assert "needs a GPU" in run(path, status=1).stderr, path


def test_cut_short(monkeypatch, tmp_path):
    """The rows that a program has measured are in its file, even if it does not reach its end; so are the rivals."""

    def measure(_):
        yield {"ms": 1.5}
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(lesson.cli, "environment", lambda device: {"device": str(device)})
    monkeypatch.setattr(lesson, "RIVALS", ("pytest", "not-installed"))
    file = tmp_path / "file.json"
    with pytest.raises(KeyboardInterrupt):
        lesson.report(Namespace(content=None, json=file, plot=None), lambda: True, measure)
    content = json.loads(file.read_text())
    assert content["results"] == [{"ms": 1.5}]
    assert content["environment"]["rivals"] == {"pytest": pytest.__version__}


def test_contestants():
    """One that refuses a size is left out; ours must not refuse."""

    def refuse():
        raise RuntimeError("rows are too wide")

    row = lesson.compare({"width": 8}, {"torch": lambda: 4.0, "liger": refuse, "ours": lambda: 1.0}, "ours")
    assert row == {"width": 8, "torch": 4.0, "ours": 1.0, "of_best": 0.25}
    with pytest.raises(RuntimeError, match="too wide"):
        lesson.compare({}, {"torch": lambda: 4.0, "ours": refuse}, "ours")
