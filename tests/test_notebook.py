"""docs/tour.ipynb: stored without outputs, and runs from the first cell to the last."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "tour.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_stored_without_outputs():
    """In Jupyter: Kernel, Restart and Clear Outputs; then save."""
    assert [cell for cell in CELLS if cell["outputs"] or cell["execution_count"]] == []


def test_first_cell_elsewhere(tmp_path, monkeypatch):
    """Outside a clone it asks for an address; with one it clones, and installs packages of pinned versions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    source = "".join(CELLS[0]["source"])
    with pytest.raises(SystemExit, match="Fill in ADDRESS"):
        exec(source, {})
    (tmp_path / "add2").mkdir()
    exec(source.replace('ADDRESS = ""', 'ADDRESS = "https://a.place/add2"'), {})
    clone, *installs = commands
    assert clone == ["git", "clone", "https://a.place/add2", "add2"]
    packages = [word for words in installs for word in words[words.index("--quiet") + 1 :] if word[0].isalpha()]
    assert [name for name in packages if "==" not in name and not name.startswith("http")] == []


@pytest.mark.thorough
def test_runs(monkeypatch, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch.compile does not notice a changed gradient
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    assert "values and gradients are torch's" in str(notebook.cells)
