"""examples/mistakes: each mistake has the symptom that docs/mistakes.md shows, and careful() does not make it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.build import toolchain

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "examples" / "mistakes" / "mistakes.py"
PAGE = (ROOT / "docs" / "mistakes.md").read_text()
NAMES = ("transposed", "short", "dtype", "length", "gradient", "compiled", "stream", "launch", "cpu", "gpu")


def sections(text):
    """{mistake: {row: value}} of the program's output, or of the page's copies of it."""
    found = re.findall(r"^(\w+): .*\n((?:  .*\n)+)", text, re.MULTILINE)
    return {
        name: dict(re.split(r"  +|: ", line.strip(), maxsplit=1) for line in rows.splitlines()) for name, rows in found
    }


@pytest.fixture(scope="module")
def output():
    env = os.environ | {"PATH": toolchain.tool_path()}
    done = subprocess.run([sys.executable, PROGRAM], cwd="/", env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return sections(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_mistake(name, output):
    rows = output[name]
    if "not shown here" in rows:
        pytest.skip(rows["not shown here"])
    if name != "gpu":  # GPUs that can read each other's memory compute the right result, slowly
        assert rows["careless"] != rows["expected"]
    if name != "length":  # shown without an operator
        assert rows["careful"] == rows["expected"] or "RuntimeError" in rows["careful"]
    assert any(row.startswith("prevented by") for row in rows)
    assert rows == sections(PAGE).get(name, rows)  # the page tells the mistakes that need a GPU in words


def test_all_mistakes_are_told(output):
    told = re.findall(r"^## (\w+): ", PAGE, re.MULTILINE)
    assert tuple(output) == NAMES == tuple(told)
    assert set(NAMES[:6]) <= set(sections(PAGE))


def test_one_mistake(run):
    assert list(sections(run(PROGRAM, "short").stdout)) == ["short"]
    assert "Choose from transposed, short" in run(PROGRAM, "shorts", status=1).stderr
