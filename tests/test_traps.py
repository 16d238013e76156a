"""examples/mistakes and examples/kinds: each does on this torch what its page says, and its cure works."""

import re
from pathlib import Path

import pytest
import torch

from lab import toolchain

ROOT = Path(__file__).resolve().parent.parent
PAGE, KINDS = ((ROOT / "docs" / name).read_text() for name in ("2_mistakes.md", "5_kinds.md"))
TITLES = dict(re.findall(r"^## (\w+): (.*)", PAGE, re.MULTILINE))
LONG = {"cpu", "gpu"}  # each in three processes that import torch
HEAD, *ROWS = (
    [cell.strip(" `") for cell in row.split("|")[1:-1]]
    for row in re.findall(r"^\| (?:trap|`\w+`) \|.*\|$", KINDS, re.MULTILINE)
)
TABLE = {row[0]: dict(zip(HEAD, row, strict=True)) for row in ROWS}


def sections(text, fence=""):
    """{name: {label: value}} of a program's output, or of a page: its headings are the output's first lines."""
    found = re.findall(rf"^(?:## )?(\w+): (.*)\n{fence}((?:  .*\n)+)", text, re.MULTILINE)
    rows = {name: [f"title  {title}", *lines.splitlines()] for name, title, lines in found}
    return {name: dict(re.split(r"  +|: ", row.strip(), maxsplit=1) for row in rows[name]) for name in rows}


@pytest.fixture(scope="module")
def mistakes(run, request):
    names = TITLES if request.config.getoption("--all") else [name for name in TITLES if name not in LONG]
    return sections(run("examples/mistakes/mistakes.py", *names, cwd="/", PATH=toolchain.tool_path()).stdout)


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.thorough] * (x in LONG)) for x in TITLES])
def test_mistake(name, mistakes):
    rows = mistakes[name]
    assert rows["title"] == TITLES[name]
    if "not shown here" in rows:
        pytest.skip(rows["not shown here"])
    if name != "gpu":  # GPUs that can read each other's memory compute the right result, slowly
        assert rows["careless"] != rows["expected"]
    if name != "length":  # shown without an operator
        assert rows["careful"] == rows["expected"] or "RuntimeError" in rows["careful"]
    shown = {label: value for label, value in rows.items() if not label.startswith("prevented by")}
    assert sections(PAGE, fence="\n```text\n").get(name, shown) == shown  # the page tells two mistakes in words


@pytest.fixture(scope="module")
def kinds(run):
    # With CI set, torch refuses the aliased result that it otherwise accepts.
    return sections(run("examples/kinds/kinds.py", drop=("CI",)).stdout)


def outcome(rows):
    """As the table says it."""
    if "tagged" in rows:
        return rows["tagged"]
    if rows["careless"] == rows["expected"]:
        return "right"
    return "refused" if "Error" in rows["careless"] else "wrong"


@pytest.mark.thorough
@pytest.mark.parametrize("name", TABLE)
def test_kinds(name, kinds):
    rows = kinds[name]
    if "not shown here" in rows:
        pytest.skip("needs a GPU")
    said = TABLE[name].get(".".join(torch.__version__.split(".")[:2]), "-")
    assert said in ("-", outcome(rows))
    cures = [rows[label] for label in ("careful", "functional", "written", "exact", "out=") if label in rows]
    assert all(cure == rows["expected"] or "RuntimeError: mirror" in cure or "return ()" in cure for cure in cures)


@pytest.mark.thorough
def test_kinds_copies(kinds):
    places = {label: value.split()[0] for label, value in kinds["copied"].items() if label != "title"}
    assert places == {"eager": "that", "inductor": "that", "aot_eager": "a"}
