"""README and docs are true: their commands run, their quotes are in the files, their links lead somewhere.

A command block is ```sh. After it may stand `gpu` (needs one) or `setup` (installs, or runs all tests: see .ci/run).
"""

import json
import os
import re
import runpy
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

from lab import toolchain
from lab.build import leftovers

ROOT = Path(__file__).resolve().parent.parent
DOCS, RESULTS, README = sorted((ROOT / "docs").glob("*.md")), ROOT / "docs" / "results", ROOT / "README.md"
TRANSLATED = {page: page.with_suffix(".zh-CN.md") for page in [README, *DOCS] if page.with_suffix(".zh-CN.md").exists()}
PAGES = [README, ROOT / "README.zh-CN.md", *DOCS]
LESSONS = [page for page in DOCS if "## Exercises" in page.read_text()]
BLOCK = re.compile(r"^```(\w*)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOLVED = sorted((ROOT / "docs" / "solutions").glob("*.py"))
SOLUTIONS = [(path, number) for path in SOLVED for number in re.findall(r"def exercise_(\d+)\(", path.read_text())]


def name(value):
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


def links(page):
    found = re.findall(r"\]\(([^)]+)\)|\bsrc=\"([^\"]+)\"", BLOCK.sub("", page.read_text()))
    return [link for link in map("".join, found) if not link.startswith("http")]


def anchors(page):
    heads = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("pages") / "copy", ignore=leftovers)


@pytest.mark.thorough
@pytest.mark.parametrize("page", [README, *DOCS], ids=name)
def test_commands(page, copy):
    """In the order of the page, each in the folder where the one before has left it."""
    marks = ("", "gpu") if torch.cuda.is_available() else ("",)
    commands = [text for language, mark, text in BLOCK.findall(page.read_text()) if language == "sh" and mark in marks]
    script = "\n".join(["set -e", *commands])
    if not commands or ("findcuda" in script and toolchain.find_nvcc() is None):
        pytest.skip("has no command to run here")
    if "auditwheel" in script and shutil.which("auditwheel", path=toolchain.tool_path()) is None:
        pytest.skip("needs auditwheel")
    env = os.environ | {"PATH": toolchain.tool_path(), "TORCH_EXTENSIONS_DIR": f"{copy}/../cache"}
    done = subprocess.run(["bash", "-c", script], cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "number"), SOLUTIONS, ids=name)
def test_solutions(path, number, run):
    if missing := re.search(r"needs (.*), which is not here", run(path, number).stdout):
        pytest.skip(f"needs {missing[1]}")


@pytest.mark.parametrize("page", LESSONS, ids=name)
def test_exercises(page):
    """Each exercise has an answer on the page and a function that runs it."""
    asked, _, answered = page.read_text().partition("## Exercises")[2].partition("<details>")
    numbers = re.findall(r"^(\d+)\. ", asked, re.MULTILINE)
    file = page.parent / re.search(r"\]\((solutions/[^)]*)\)", answered)[1]
    assert numbers == [number for path, number in SOLUTIONS if path == file]
    assert numbers == [each for each in re.findall(r"(?:^|(?<=\s))(\d+)\. (?=\S)", answered) if each in numbers]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_quotes_and_links(page):
    """Code is in one of the files that the page links to, except the README's call of add2; each link leads on."""
    targets = [(link, (page.parent / link.partition("#")[0]).resolve()) for link in links(page)]
    for link, path in targets:
        assert path.exists(), link
        if "#" in link:
            assert link.partition("#")[2] in anchors(page if link.startswith("#") else path), link
    assert page.read_text().count("\n") <= 150
    files = [path.read_text() for _, path in targets if path.is_file() and path.suffix not in (".png", ".svg")]
    for language, _, text in BLOCK.findall(page.read_text()):
        if language in ("cpp", "cuda", "python", "cmake") and "import add2" not in text:
            assert any(textwrap.dedent(text) in textwrap.dedent(file) or text in file for file in files), text


def test_every_page_is_reached():
    assert {f"docs/{page.name}" for page in DOCS} <= {link for page in PAGES[:2] for link in links(page)}


@pytest.mark.parametrize("pages", TRANSLATED.items(), ids=lambda pages: name(pages[1]))
def test_translation(pages):
    """A Chinese page has the code, the tables and the links of the English one, but not its exercises."""
    texts = [page.read_text().partition("## Exercises")[0].replace("-zh -->", " -->") for page in pages]
    english, chinese = ([block for block in BLOCK.findall(text) if block[0] != "mermaid"] for text in texts)
    assert english == chinese
    english, chinese = (set(re.findall(r"figures: \S+|\]\([^)#]+", text.replace(".zh-CN", ""))) for text in texts)
    assert english - chinese == set()


def test_figures(run):
    """The tables are those of docs/results; each file there says where it comes from; measure.py's options exist."""
    run("docs/results/figures.py", "--check")
    for path in RESULTS.glob("*.json"):
        content = json.loads(path.read_text())
        for record in content if isinstance(content, list) else [content]:
            assert {"name", "torch", "date", "command"} <= record["environment"].keys(), path
    measure = runpy.run_path(str(RESULTS / "measure.py"))
    commands = [line.split() for machine in ("GPU", "CPU") for lines in measure[machine].values() for line in lines]
    for program in {words[0] for words in commands}:
        options = {word for words in commands if words[0] == program for word in words if word.startswith("--")}
        assert options <= set(re.findall(r"--[\w-]+", run(program, "--help").stdout)), program


@pytest.mark.parametrize("page", PAGES[:2], ids=name)
def test_norm_in_the_readme(page):
    """Times of other kernels over ours, in the README's own words."""
    rows = json.loads((RESULTS / "h200-add-rms-norm.json").read_text())["results"]
    chosen = [row for row in rows if (row["width"], row["rows"]) == (4096, 16384)]
    shown = [f"{row[other] / row['add_rms_norm']:.2f}" for row in chosen for other in ("torch.compile", "liger")]
    assert [each for each in shown if each not in page.read_text()] == []
