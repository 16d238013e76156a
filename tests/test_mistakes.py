"""examples/mistakes: each mistake has the symptom that docs/2_mistakes.md shows, and careful() does not make it."""

import re
from pathlib import Path

import pytest

from lab import toolchain

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "examples" / "mistakes" / "mistakes.py"
PAGE = (ROOT / "docs" / "2_mistakes.md").read_text()
TITLES = dict(re.findall(r"^## (\w+): (.*)", PAGE, re.MULTILINE))


def sections(text, fence=""):
    """{mistake: {label: value}} of the program's output, or of the page: its headings are the output's first lines."""
    found = re.findall(rf"^(?:## )?(\w+): (.*)\n{fence}((?:  .*\n)+)", text, re.MULTILINE)
    rows = {name: [f"title  {title}", *lines.splitlines()] for name, title, lines in found}
    return {name: dict(re.split(r"  +|: ", row.strip(), maxsplit=1) for row in rows[name]) for name in rows}


@pytest.fixture(scope="module")
def output(run):
    return sections(run(PROGRAM, cwd="/", PATH=toolchain.tool_path()).stdout)


@pytest.mark.parametrize("name", TITLES)
def test_mistake(name, output):
    rows = output[name]
    assert rows["title"] == TITLES[name]
    if "not shown here" in rows:
        pytest.skip(rows["not shown here"])
    if name != "gpu":  # GPUs that can read each other's memory compute the right result, slowly
        assert rows["careless"] != rows["expected"]
    if name != "length":  # shown without an operator
        assert rows["careful"] == rows["expected"] or "RuntimeError" in rows["careful"]
    shown = {label: value for label, value in rows.items() if not label.startswith("prevented by")}
    assert sections(PAGE, fence="\n```text\n").get(name, shown) == shown  # the page tells two mistakes in words
