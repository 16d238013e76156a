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

from lab import figures
from lab.build import cache, toolchain

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = [*READMES, *DOCS, *sorted((ROOT / "examples").glob("*/README.md")), ROOT / "lab" / "README.md"]
PAGES += figures.RESULTS.glob("README.md")
LESSONS = [page for page in DOCS if "## Exercises" in page.read_text()]
BLOCK = re.compile(r"^```(\w*)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, *languages):
    return [(mark, text) for language, mark, text in BLOCK.findall(page.read_text()) if language in languages]


def name(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """One copy of the project for all pages, so that each build is made once."""
    copy = tmp_path_factory.mktemp("pages") / "copy"
    shutil.copytree(ROOT, copy, ignore=cache.leftovers)
    return copy


@pytest.mark.thorough
@pytest.mark.parametrize("page", [READMES[0], *DOCS], ids=name)
def test_commands(page, copy):
    """In the order of the page, each in the folder where the one before has left it."""
    marks = {"", "gpu"} if torch.cuda.is_available() else {""}
    commands = [text for mark, text in blocks(page, "sh") if mark in marks]
    if not commands:
        pytest.skip("has no command to run here")
    if "findcuda" in str(commands) and toolchain.find_nvcc() is None:
        pytest.skip("needs nvcc")
    if "auditwheel" in str(commands) and shutil.which("auditwheel", path=toolchain.tool_path()) is None:
        pytest.skip("needs auditwheel")
    env = os.environ | {
        "PATH": toolchain.tool_path(),
        "TORCH_EXTENSIONS_DIR": str(copy.parent / "cache"),
        "OMP_NUM_THREADS": "2",
    }
    script = "set -e\n" + "\n".join(commands)
    done = subprocess.run(["bash", "-c", script], cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr


SOLUTION = re.compile(r"^def exercise_(\d+)\(\):\n(.*?)(?=^\S)", re.MULTILINE | re.DOTALL)
SOLUTIONS = [
    (path, number)
    for path in sorted((ROOT / "docs" / "solutions").glob("*.py"))
    if path.name != "workshop.py"
    for number, _ in SOLUTION.findall(path.read_text())
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("path", "number"), SOLUTIONS, ids=lambda value: value.stem if isinstance(value, Path) else value
)
def test_solutions(path, number, run):
    """Each exercise's solution does what the page says; it asserts that itself."""
    done = run(path, number)
    if missing := re.search(r"needs (.*), which is not here", done.stdout):
        pytest.skip(f"needs {missing[1]}")


def exercises(page):
    """Numbers of the exercises; the file that solves them; numbers of the answers, which are folded."""
    asked, _, answered = page.read_text().partition("## Exercises")[2].partition("<details>")
    file = re.search(r"\]\((solutions/[^)]*)\)", answered)
    assert file, f"{name(page)}: no link to solutions/ between <details> and its end"
    numbers = re.findall(r"^(\d+)\. ", asked, re.MULTILINE)
    return numbers, (page.parent / file[1]).resolve(), re.findall(r"(?:^|(?<=\s))(\d+)\. (?=\S)", answered)


@pytest.mark.parametrize("page", LESSONS, ids=name)
def test_exercises(page):
    """Each exercise has an answer on the page and a function that runs it."""
    asked, file, answered = exercises(page)
    assert asked
    assert asked == [number for number in answered if number in asked]
    assert asked == [number for path, number in SOLUTIONS if path == file]


def test_solutions_belong_to_pages():
    assert {exercises(page)[1] for page in LESSONS} == {path for path, _ in SOLUTIONS}


@pytest.mark.parametrize("page", [*READMES, *DOCS], ids=name)
def test_quotes(page):
    """Code that a page shows is in one of the files that the page links to; the README's own is a call of add2."""
    linked = [(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)", page.read_text())]
    files = [path.read_text() for path in linked if path.is_file() and path.suffix not in (".png", ".svg")]
    for _, text in blocks(page, "cpp", "cuda", "python", "cmake"):
        if page in READMES and "import add2" in text:
            continue
        assert any(textwrap.dedent(text) in textwrap.dedent(file) or text in file for file in files), text


@pytest.mark.thorough
def test_call_in_the_readme(run):
    (_, text), *_ = blocks(READMES[0], "python")
    run("-c", f"from lab import build; build.load('jit')\n{text}\nassert c.tolist() == [2, 2, 2]")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page):
    text = BLOCK.sub("", page.read_text())
    for link in re.findall(r"\]\(([^)]+)\)|\bsrc=\"([^\"]+)\"", text):
        link = "".join(link)
        if link.startswith("http"):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads], link


def test_every_page_is_reached():
    """The README leads to each page."""
    linked = re.findall(r"\]\((docs/[^)/]+\.md)\)", READMES[0].read_text())
    assert {name(page) for page in DOCS if ".zh-CN" not in page.name} <= set(linked)


def test_figures(run):
    """The tables are those of docs/results, and each file there says where it comes from."""
    run("-m", "lab.figures", "--check")
    for path in figures.RESULTS.glob("*.json"):
        content = figures.load(path.stem)
        for record in content if isinstance(content, list) else [content]:
            assert {"name", "torch", "date", "command"} <= record["environment"].keys(), path


COMPARED = [  # of the README's first lines: row and column of h200-others.json, rounded
    ({"operator": "add2"}, "seconds", "1.8"),
    ({"operator": "extension-cpp"}, "seconds", "11"),
    ({"operator": "article"}, "seconds", "18"),
    ({"call": "add2: add2"}, "host_us", "12.3"),
    ({"call": "a + b"}, "host_us", "10.6"),
    ({"call": "extension-cpp: mymuladd"}, "host_us", "24.5"),
    ({"call": "add2: add2, with grad"}, "host_us", "19.1"),
    ({"call": "a + b, with grad"}, "host_us", "12.4"),
    ({"call": "extension-cpp: mymuladd, with grad"}, "host_us", "52.2"),
    ({"call": "add2"}, "gb_per_s", "4260"),
    ({"call": "torch.add(out)", "n": 2**26}, "gb_per_s", "4248"),
    ({"call": "article"}, "gb_per_s", "2871"),
]


@pytest.mark.parametrize("page", READMES, ids=name)
def test_compared_figures(page):
    """The README's comparison shows the measured figures, rounded: all from one run of compare.py."""
    text = page.read_text().partition("\n## ")[0]
    rows = figures.load("h200-others")["compare"]
    for wanted, column, shown in COMPARED:
        row = next(row for row in rows if wanted.items() <= row.items())
        digits = len(shown.partition(".")[2])
        assert f"{row[column]:.{digits}f}" == shown, wanted
        assert re.search(rf"(?<![\d.]){re.escape(shown)}(?!\.?\d)", text), (page, shown)


TRANSLATED = [READMES, [ROOT / "docs" / "1_minimal.md", ROOT / "docs" / "1_minimal.zh-CN.md"]]


@pytest.mark.parametrize("pages", TRANSLATED, ids=lambda pages: name(pages[1]))
def test_translation(pages):
    """A Chinese page has the commands, the code and the figures of the English one, in the same order."""
    english, chinese = ([block for block in BLOCK.findall(page.read_text()) if block[0] != "mermaid"] for page in pages)
    assert english == chinese


def test_translated_links():
    """README.zh-CN.md leads to the same places, and to the page that is translated as well."""
    links = [re.findall(r"\]\(([^)]+)\)", BLOCK.sub("", page.read_text())) for page in READMES]
    here = {"README.zh-CN.md", "README.md", "docs/1_minimal.zh-CN.md"}
    english, chinese = ([link for link in found if link not in here] for found in links)
    assert english == chinese


@pytest.mark.parametrize("page", [*READMES, *DOCS], ids=name)
def test_size(page):
    """A page is read in one sitting: long tables are in docs/results/README.md."""
    text = page.read_text()
    assert len(text.split()) <= (900 if page in READMES else 1300)
    assert len(text.splitlines()) <= 150
    tables = re.findall(r"(?:^\|.*\n)+", BLOCK.sub("", text), re.MULTILINE)
    assert len(tables) <= 2
    assert max((table.count("\n") - 2 for table in tables), default=0) <= 8


WORST = re.compile(
    r"\b(?:besides?|for ever|somebody|nobody|whoever|hardly so|linker's eyes)\b"
    r"|\b(?:parts?|drivers?|headers?|CPUs?|GPUs?|kernels?|Python) alone\b"
    r'|"""What(?:ever)?\b',
    re.IGNORECASE,
)
SUFFIXES = {".md", ".py", ".cpp", ".cu", ".cuh", ".h", ".txt", ".cmake", ".toml", ".json"}
FOLDERS = ("add2", "docs", "examples", "include", "kernel", "lab", "tests")
TEXTS = [*ROOT.glob("*.*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))]


def test_words():
    """The worst habits that readers called translated English."""
    found = [
        f"{name(path)}:{number}: {match[0]}"
        for path in TEXTS
        if path.suffix in SUFFIXES and path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := WORST.search(line))
    ]
    assert not found, "\n".join(found)
