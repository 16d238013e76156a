"""README and docs are true: their commands run, their quotes are in the files, their links lead somewhere.

A command block is ```sh. After it may stand `gpu` (runs where there is one) or `setup` (installs things, or runs all
tests: .ci/run does that); all others are run here, page by page, in a copy of the project.
"""

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

from lab import cache, figures, toolchain

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = [*READMES, *DOCS, *sorted((ROOT / "examples").glob("*/README.md"))]
BLOCK = re.compile(r"^```(\w*)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, *languages):
    return [(mark, text) for language, mark, text in BLOCK.findall(page.read_text()) if language in languages]


def name(page):
    return str(page.relative_to(ROOT))


ONCE = [pytest.param(page, marks=pytest.mark.once("pages")) for page in [READMES[0], *DOCS] if page.name != "cmake.md"]


@pytest.mark.parametrize("page", [*ONCE, ROOT / "docs" / "cmake.md"], ids=name)
def test_commands(page, tmp_path):
    """In the order of the page, each in the folder where the one before has left it."""
    marks = {"", "gpu"} if torch.cuda.is_available() else {""}
    commands = [text for mark, text in blocks(page, "sh") if mark in marks]
    if not commands:
        pytest.skip("has no command to run here")
    if "findcuda" in str(commands) and toolchain.find_nvcc() is None:
        pytest.skip("needs nvcc")
    if "auditwheel" in str(commands) and shutil.which("auditwheel", path=toolchain.tool_path()) is None:
        pytest.skip("needs auditwheel")
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=cache.LEFTOVERS)
    env = os.environ | {
        "PATH": toolchain.tool_path(),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "2",
    }
    script = "set -e\n" + "\n".join(commands)
    done = subprocess.run(["bash", "-c", script], cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr


SOLUTION = re.compile(r"^def exercise_(\d+)\(\):\n(.*?)(?=^\S)", re.MULTILINE | re.DOTALL)
SOLUTIONS = [
    (path, number, body)
    for path in sorted((ROOT / "docs" / "solutions").glob("[1-9]*_*.py"))
    for number, body in SOLUTION.findall(path.read_text())
]


@pytest.mark.parametrize(
    ("path", "number"),
    [
        pytest.param(path, number, marks=[] if "need_nvcc()" in body else pytest.mark.once("pages"))
        for path, number, body in SOLUTIONS
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_solutions(path, number, run):
    """Each exercise's solution does what the page says; it asserts that itself."""
    done = run(path, number)
    if missing := re.search(r"needs (.*), which is not here", done.stdout):
        pytest.skip(f"needs {missing[1]}")


@pytest.mark.parametrize("page", DOCS, ids=name)
def test_quotes(page):
    """Code that a page shows is in one of the files that the page links to."""
    linked = [(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)", page.read_text())]
    files = [path.read_text() for path in linked if path.is_file() and path.suffix != ".png"]
    for _, text in blocks(page, "cpp", "cuda", "python", "cmake"):
        assert any(textwrap.dedent(text) in textwrap.dedent(file) or text in file for file in files), text


@pytest.mark.parametrize("page", READMES, ids=name)
def test_path_of_a_call(page):
    """The table of the call: each line is in its file."""
    rows = re.findall(r"^\| \[`.*`\]\((.+)\) \| `(.+)` \|$", page.read_text(), re.MULTILINE)
    assert len(rows) == 6
    for file, line in rows:
        assert line in (ROOT / file).read_text(), line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page):
    text = BLOCK.sub("", page.read_text())
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("http"):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads], link


def test_figures(run):
    """The tables are those of docs/results, and each file there says where it comes from."""
    run("-m", "lab.figures", "--check")
    for path in figures.RESULTS.glob("*.json"):
        content = figures.load(path.stem)
        for record in content if isinstance(content, list) else [content]:
            assert {"name", "torch", "date", "command"} <= record["environment"].keys(), path


def test_translation():
    """README.zh-CN.md has the commands, the code and the figures of README.md, in the same order."""
    english, chinese = (BLOCK.findall(page.read_text()) for page in READMES)
    assert english == chinese
    links = [re.findall(r"\]\(([^)]+)\)", BLOCK.sub("", page.read_text())) for page in READMES]
    swap = {"README.zh-CN.md": "README.md"}
    assert [swap.get(link, link) for link in links[0]] == [swap.get(link, link) for link in links[1]]


@pytest.mark.parametrize("page", DOCS, ids=name)
def test_shape(page):
    """A page opens with what you will know at its end, and closes with exercises and their solutions."""
    text = page.read_text()
    assert text.split("\n\n")[1].startswith("At the end of this page you")
    exercises = re.search(
        r"^## Exercises\n\n(1\. .*)^Solutions \(\[which run\]\((.*?)\)\): (1\. .*)", text, re.MULTILINE | re.DOTALL
    )
    numbers = re.findall(r"^(\d)\. ", exercises[1], re.MULTILINE)
    assert numbers == re.findall(r"\b(\d)\. (?=\S)", exercises[3])
    assert numbers == [number for path, number, _ in SOLUTIONS if path == (page.parent / exercises[2]).resolve()]
    assert 80 <= len(text.splitlines()) <= 200
