"""The schematic figures are what their program draws and name files that exist; the glossary's words have addresses."""

import re
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "drawings"
FIGURES = runpy.run_path(str(FOLDER / "draw.py"))["FIGURES"]
TEXT = "{http://www.w3.org/2000/svg}text"


def texts(name):
    return list(ElementTree.parse(FOLDER / f"{name}.svg").iter(TEXT))


def test_every_figure_has_its_program():
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_drawn_again(name):
    """After a change: `python3 docs/drawings/draw.py`, and commit what it wrote."""
    drawn = FIGURES[name]().svg().encode()
    assert drawn == (FOLDER / f"{name}.svg").read_bytes()
    assert len(drawn) < 60_000


@pytest.mark.parametrize("name", FIGURES)
def test_readable_on_a_phone(name):
    """Words are 12 pixels high where the whole figure is 360 wide."""
    root = ElementTree.parse(FOLDER / f"{name}.svg").getroot()
    width = float(root.get("viewBox").split()[2])
    assert min(float(text.get("font-size")) for text in texts(name)) * 360 / width >= 12


def test_files_exist():
    words = " ".join("".join(text.itertext()) for name in FIGURES for text in texts(name))
    files = re.findall(r"[\w/]+\.(?:py|cpp|cuh|cu|h|txt)\b", words)
    assert files
    folders = re.findall(r"\b\w+/(?=\s)", words)
    missing = [path for path in files + folders if not (ROOT / path).exists()]
    assert not missing


def test_glossary():
    """Each word is a heading, so a link can lead to it; no two have the same address; each is explained in one line."""
    text = (ROOT / "docs" / "glossary.md").read_text()
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
    assert len(set(anchors)) == len(anchors)
    entries = re.findall(r"^### (.+)\n(.*)\n(.*)", text + "\n", re.MULTILINE)
    assert len(entries) == text.count("\n### ")
    assert [word for word, line, after in entries if not line or after] == []
