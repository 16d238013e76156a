"""examples/kinds: each trap does on this torch what the table of docs/5_kinds.md says, and its cure works."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
HEAD, *ROWS = re.findall(r"^\| (?:trap|`\w+`) \|.*\|$", (ROOT / "docs" / "5_kinds.md").read_text(), re.MULTILINE)
VERSIONS = [cell.strip() for cell in HEAD.split("|")[2:-1]]
CELLS = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in ROWS]
TABLE = {name: dict(zip(VERSIONS, cells, strict=True)) for name, *cells in CELLS}


@pytest.fixture(scope="module")
def output(run):
    # With CI set, torch refuses the aliased result that it otherwise accepts.
    found = re.findall(r"^(\w+): .*\n((?:  .*\n)+)", run("examples/kinds/kinds.py", drop=("CI",)).stdout, re.MULTILINE)
    return {
        name: dict(re.split(r"  +|: ", row.strip(), maxsplit=1) for row in rows.splitlines()) for name, rows in found
    }


def outcome(rows):
    """As the table says it."""
    if "tagged" in rows:
        return rows["tagged"]
    if rows["careless"] == rows["expected"]:
        return "right"
    return "refused" if "Error" in rows["careless"] else "wrong"


@pytest.mark.thorough
@pytest.mark.parametrize("name", TABLE)
def test_trap(name, output):
    rows = output[name]
    if "not shown here" in rows:
        pytest.skip("needs a GPU")
    said = TABLE[name].get(".".join(torch.__version__.split(".")[:2]), "-")
    assert said in ("-", outcome(rows))
    cures = [rows[label] for label in ("careful", "functional", "written", "exact", "out=") if label in rows]
    assert all(cure == rows["expected"] or "RuntimeError: mirror" in cure or "return ()" in cure for cure in cures)


@pytest.mark.thorough
def test_copies(output):
    places = {label: value.split()[0] for label, value in output["copied"].items()}
    assert places == {"eager": "that", "inductor": "that", "aot_eager": "a"}
