"""The lessons' programs: options, files of results, and how they end. test_examples.py has those that need no GPU."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from lab import lesson

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.thorough
@pytest.mark.anywhere
def test_pictures(run, tmp_path):
    """docs/figures.py draws those that the pages show, with text that stays text."""
    pytest.importorskip("matplotlib")
    code = "import pathlib, sys; sys.path.insert(0, 'docs'); import figures; figures.draw(pathlib.Path(sys.argv[1]))"
    run("-c", code, tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn.keys() == {path.name for path in (EXAMPLES.parent / "docs" / "results").glob("*.svg")}
    assert "rows of x</text>" in drawn["h200-int4.svg"]


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure for minutes")
@pytest.mark.parametrize("program", ["*/bench.py", "*/ladder.py", "llama/compare.py"])
def test_without_a_gpu(program, run, tmp_path):
    """It ends with a line, and leaves an earlier file alone. A mistake in an option is found first."""
    (tmp_path / "file.json").write_text("[1]")
    for path in EXAMPLES.glob(program):
        assert "cannot write" in run(path, "--json", tmp_path / "missing" / "file.json", status=2).stderr
        assert "needs a GPU" in run(path, "--json", tmp_path / "file.json", status=1).stderr, path
    assert (tmp_path / "file.json").read_text() == "[1]"


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
        lesson.report(Namespace(json=file), lambda: True, measure)
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
