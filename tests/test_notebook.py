"""docs/tour.ipynb: stored without outputs, and runs from the first cell to the last."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "tour.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_stored_without_outputs():
    """In Jupyter: Kernel, Restart and Clear Outputs; then save."""
    assert [cell for cell in CELLS if cell["outputs"] or cell["execution_count"]] == []


@pytest.mark.thorough
@pytest.mark.anywhere
def test_runs(monkeypatch, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch.compile does not notice a changed gradient
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    assert "values and gradients are torch's" in str(notebook.cells)
