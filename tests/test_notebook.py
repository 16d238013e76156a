"""docs/tour.ipynb: stored without outputs, and runs from the first cell to the last."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "tour.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
FIRST = "".join(CELLS[0]["source"])


def test_stored_without_outputs():
    """In Jupyter: Kernel, Restart and Clear Outputs; then save."""
    assert [cell["outputs"] for cell in CELLS if cell["outputs"]] == []
    assert {cell["execution_count"] for cell in CELLS} == {None}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Run the first cell outside a clone; returns the commands that it wants to run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    commands = []

    def note(command, check):
        commands.append(command)
        if command[:2] == ["git", "clone"]:
            (tmp_path / command[-1]).mkdir()

    monkeypatch.setattr(subprocess, "run", note)

    def run(cell):
        exec(compile(cell, "first cell", "exec"), {})
        return commands

    return run


def test_fetches_itself_and_pinned_packages(elsewhere, tmp_path):
    clone, *installs = elsewhere(FIRST.replace('ADDRESS = ""', 'ADDRESS = "https://a.place/add2"'))
    assert clone == ["git", "clone", "https://a.place/add2", "add2"]
    packages = [word for words in installs for word in words[words.index("--quiet") + 1 :]]
    names = [word for word in packages if word[0].isalpha() and not word.startswith("http")]
    assert {name.partition("==")[0] for name in names} >= {"torch", "numpy", "ninja", "matplotlib"}
    assert [name for name in names if "==" not in name] == []
    assert Path.cwd() == tmp_path / "add2"


def test_asks_for_the_address(elsewhere):
    with pytest.raises(SystemExit, match="Fill in ADDRESS"):
        elsewhere(FIRST)


@pytest.mark.thorough
def test_runs(monkeypatch, tmp_path):
    """Every cell, with a GPU or without; a cell that raises an error ends the test with its traceback."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    monkeypatch.chdir(NOTEBOOK.parent)
    # torch.compile's cache does not notice that an operator's gradient has changed (torch 2.13).
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in shown)
    pictures = [output for output in shown if "image/svg+xml" in output.get("data", {})]
    assert "before and after  first call" in text
    assert "values and gradients are torch's" in text
    assert len(pictures) == 3
