"""README and docs are true: their commands run, their quotes are in the files, their links lead somewhere, and what
pages 2 and 6 say of a program's output is so on this torch.

A command block is ```sh. After it may stand `gpu` (needs one) or `setup` (installs, or runs all tests: see .ci/run).
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from lab import sources, toolchain
from lab.build import leftovers

ROOT = Path(__file__).resolve().parent.parent
DOCS, RESULTS, README = sorted((ROOT / "docs").glob("*.md")), ROOT / "docs" / "results", ROOT / "README.md"
TRANSLATED = {page: page.with_suffix(".zh-CN.md") for page in [README, *DOCS] if page.with_suffix(".zh-CN.md").exists()}
PAGES = [README, ROOT / "README.zh-CN.md", *DOCS]
NOTEBOOK = ROOT / "docs" / "tour.ipynb"
# by other tests, and by .ci/run
RUN_ELSEWHERE = (
    "articles/follow.py",
    "kinds/kinds.py",
    "mistakes/mistakes.py",
    "minimal/minimal.py",
    "port/functions.py",
    "pip wheel",
)
LESSONS = [page for page in DOCS if "## Exercises" in page.read_text()]
BLOCK = re.compile(r"^```(\w*)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOLVED = sorted((ROOT / "docs" / "solutions").glob("*.py"))
SOLUTIONS = [(path, number) for path in SOLVED for number in re.findall(r"def exercise_(\d+)\(", path.read_text())]

MISTAKES, KINDS = ((ROOT / "docs" / name).read_text() for name in ("2_mistakes.md", "6_kinds.md"))
TITLES = dict(re.findall(r"^## (\w+): (.*)", MISTAKES, re.MULTILINE))
HEAD, *ROWS = (
    [cell.strip(" `") for cell in row.split("|")[1:-1]]
    for row in re.findall(r"^\| (?:trap|`\w+`) \|.*\|$", KINDS, re.MULTILINE)
)
TABLE = {row[0]: dict(zip(HEAD, row, strict=True)) for row in ROWS}


def name(value):
    return str(value).removeprefix(f"{ROOT}/")


def links(page):
    found = re.findall(r"(?:\]\(|\bsrc=\")([^)\"]+)", BLOCK.sub("", page.read_text()))
    return [link for link in found if not link.startswith("http")]


def anchors(page):
    heads = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]


def test_links_of_exercises():
    """A task's link to a section of a page leads to it."""
    for task in sorted((ROOT / "examples" / "practice").glob("*/task*.md")):
        for link in links(task):
            path, _, section = link.partition("#")
            assert not section or section in anchors(task.parent / path), (name(task), link)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("pages") / "copy", ignore=leftovers)


BUILDING = ("README.md", "3_operator.md", "7_builds.md", "20_port.md")  # nvcc builds what their commands build


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page.name in BUILDING else pytest.mark.anywhere)
        for page in [README, *DOCS]
        if page not in TRANSLATED.values()
    ],
    ids=name,
)
def test_commands(page, copy):
    marks = ("", "gpu", "gpus")[: 1 + min(2, torch.cuda.device_count())]  # "gpus": needs two
    commands = [text for language, mark, text in BLOCK.findall(page.read_text()) if language == "sh" and mark in marks]
    script = "\n".join(["set -e", *commands])
    if not commands or any(program in script for program in RUN_ELSEWHERE):
        pytest.skip("has no command to run here")
    env = os.environ | {"PATH": toolchain.tool_path(), "TORCH_EXTENSIONS_DIR": f"{copy}/../cache"}
    done = subprocess.run(["bash", "-c", script], cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.parametrize(("path", "number"), SOLUTIONS, ids=name)
def test_solutions(path, number, run):
    if missing := re.search(r"needs (.*), which is not here", run(path, number, drop=("CI",)).stdout):
        pytest.skip(f"needs {missing[1]}")


@pytest.mark.parametrize("page", LESSONS, ids=name)
def test_exercises(page):
    """Where an answer is a program, it belongs to an exercise of the page, and the page links to it."""
    asked, _, answered = page.read_text().partition("## Exercises")[2].partition("<details>")
    numbers = re.findall(r"^(\d+)\. ", asked, re.MULTILINE)
    programs = {number for path, number in SOLUTIONS if path.stem == page.stem}
    assert programs <= {*numbers}
    assert bool(programs) == (f"solutions/{page.stem}.py" in answered)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_quotes_and_links(page):
    """Code is in one of the files that the page links to, except the README's call of add2; each link leads on."""
    targets = [(link, (page.parent / link.partition("#")[0]).resolve()) for link in links(page)]
    for link, path in targets:
        assert path.exists(), link
        if "#" in link:
            assert link.partition("#")[2] in anchors(page if link.startswith("#") else path), link
    files = [path.read_text() for _, path in targets if path.is_file() and path.suffix not in (".png", ".svg")]
    for language, _, text in BLOCK.findall(page.read_text()):
        if language in ("cpp", "cuda", "python", "cmake") and "import add2" not in text:
            assert any(textwrap.dedent(text) in textwrap.dedent(file) or text in file for file in files), text


@pytest.mark.parametrize("pages", TRANSLATED.items(), ids=lambda pages: name(pages[1]))
def test_translation(pages):
    texts = [page.read_text().partition("## Exercises")[0].replace("-zh -->", " -->") for page in pages]
    english, chinese = (BLOCK.findall(text) for text in texts)
    assert english == chinese
    english, chinese = (set(re.findall(r"figures: \S+|\]\([^)#]+", text.replace(".zh-CN", ""))) for text in texts)
    assert english - chinese == set()


def translations(*arguments, root=ROOT, status=0):
    """Run docs/translations.py, which needs no torch. Returns what it printed."""
    command = [sys.executable, root / "docs" / "translations.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_translations_are_up_to_date():
    """Where this fails, the program says which page to translate, and the command that records it."""
    translations()


def test_a_translation_that_is_behind(tmp_path):
    """A changed word is noticed, a moved line break and a new figure are not; --done records today's text."""
    (tmp_path / "docs").mkdir()
    for path in (ROOT / "docs" / "translations.py", *TRANSLATED, *TRANSLATED.values()):
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    done, readme = ["--done", "README.zh-CN.md"], tmp_path / "README.md"
    translations(
        "--done", *(tmp_path / name(page) for page in TRANSLATED.values() if "glossary" not in page.name), root=tmp_path
    )
    text = readme.read_text()
    for found, new in (("\n", "\n\n"), ("GPU us", "GPU us, measured again")):
        readme.write_text(text.replace(found, new, 1))
        assert readme.read_text() != text
        translations(root=tmp_path)
    readme.write_text(text.replace("optional", "needed", 1))
    told = translations(root=tmp_path, status=1)
    assert "README.zh-CN.md is behind README.md." in told
    assert f"python3 docs/translations.py {' '.join(done)}" in told
    done[1] = tmp_path / done[1]
    assert translations(*done, root=tmp_path) == ""
    assert translations(*done, root=tmp_path) == ""
    assert (tmp_path / "README.zh-CN.md").read_text().count("<!-- translates README.md") == 1
    assert "is not one of" in translations("--done", readme, root=tmp_path, status=2)


@pytest.fixture(scope="module")
def figures():
    """The module docs/figures.py."""
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("figures")


@pytest.mark.parametrize("page", [*PAGES, RESULTS / "README.md"], ids=name)
def test_figures(page, figures):
    """The tables are those of docs/results."""
    assert figures.renewed(page, is_age_shown=False) == page.read_text(), "run python3 docs/figures.py"


@pytest.mark.thorough
@pytest.mark.anywhere
def test_pages_say_which_figures_are_old(figures, capsys):
    """Not a part of the short run: a reader who edits a kernel need not measure again."""
    assert figures.check() == 0, capsys.readouterr().out


def test_records():
    """Each record says where its figures come from, and which code was measured."""
    for path in RESULTS.glob("*.json"):
        content = json.loads(path.read_text())
        for record in content if isinstance(content, list) else [content]:
            assert {"name", "torch", "date", "command"} <= record["environment"].keys(), path.name
            assert {"commit", "sources"} & record["environment"].keys(), path.name


@pytest.mark.thorough
@pytest.mark.anywhere
def test_a_program_names_its_sources(run):
    """The kernels of its own folder, and no others."""
    code = "import sys; sys.path.insert(0, 'examples/transpose'); import transpose\n"
    code += "from lab import sources; print(*sources.of_this_process()['sources'])"
    assert run("-c", code).stdout.split() == ["examples/transpose/transpose.cu"]


def test_a_record_that_is_older_than_its_kernel(figures, monkeypatch, tmp_path, capsys):
    """An edit of code that was measured is noticed, also in a file that it includes; a comment is not. Below the table
    stands a line, README leaves the table out, and --check says which file it was."""
    records, lesson = figures.records, tmp_path / "examples" / "lesson"
    lesson.mkdir(parents=True)
    kernel, plan, host = lesson / "sum.cu", tmp_path / "include" / "plan.h", lesson / "sum.py"
    plan.parent.mkdir()
    kernel.write_text('#include "plan.h"\nint a; // one\n')
    plan.write_text("int b;\n")
    host.write_text("c = 1\n")
    (tmp_path / "old.json").write_text(json.dumps({"environment": {"commit": "abc"}, "results": [{"us": 1.5}]}))
    for module in (records, figures):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setitem(figures.tables.TABLES, "old", lambda: f"{records.load('old')[0]['us']:.1f} us\n")
    records.note("old", {"sources": sources.state(["examples/lesson"], root=tmp_path)})
    pages = [tmp_path / "README.md", tmp_path / "docs" / "page.md"]
    pages[1].parent.mkdir()
    monkeypatch.setattr(figures, "PAGES", pages)

    def written():
        records.changed_files.cache_clear()
        for page in pages:
            page.write_text("<!-- figures: old -->\n<!-- end -->\n")
        texts = [figures.renewed(page) for page in pages]
        for page, text in zip(pages, texts, strict=True):
            page.write_text(text)
        return texts

    assert list(records.environment("old")["sources"]) == ["examples/lesson/sum.cu", "include/plan.h"]
    kernel.write_text('#include "plan.h"\nint a;  /* two */\n')
    host.write_text("c = 2\n")
    assert written() == ["<!-- figures: old -->\n\n1.5 us\n\n<!-- end -->\n"] * 2
    assert figures.check() == 0
    assert capsys.readouterr().out == ""
    plan.write_text("int b = 2;\n")
    records.changed_files.cache_clear()
    assert figures.check() == 1
    assert written()[0] == "<!-- figures: old -->\n\n<!-- end -->\n"
    assert "1.5 us\n\n*The kernels have changed since this was measured.*\n\n<!-- end" in written()[1]
    assert figures.check() == 0
    assert "old (commit abc) is older than its kernels: include/plan.h" in capsys.readouterr().out
    records.changed_files.cache_clear()


@pytest.mark.thorough
@pytest.mark.anywhere
def test_options(run):
    """Programs have the options that the commands of the results, and the page of a day with a GPU, give them."""
    whole = re.compile(r"python3 [\w/]+\.py( [\w^,/-]+)* --json FILE(\.json)?")  # others were made by hand
    found = {}
    for record in RESULTS.glob("*.json"):
        content = json.loads(record.read_text())
        given = [run["environment"]["command"] for run in (content if isinstance(content, list) else [content])]
        found[record.stem] = given if all(map(whole.fullmatch, given)) else []
    commands = [each for part in found.values() for each in part]
    commands += re.findall(r"`(python3 \S+\.py.*?)`", (ROOT / "docs" / "gpu-day.md").read_text())
    for program in {command.split()[1] for command in commands}:
        assert (ROOT / program).exists()
        options = re.findall(r"--[\w-]+", " ".join(each for each in commands if each.split()[1] == program))
        assert not options or {*options} <= {*re.findall(r"--[\w-]+", run(program, "--help").stdout)}, program


@pytest.mark.thorough
def test_renewed_records(figures, nvcc, monkeypatch, tmp_path):
    """A kernel that has only another name is the one that was measured; one that computes something else is not."""
    records, kernel = figures.records, tmp_path / "lesson" / "sum.cu"
    kernel.parent.mkdir()
    kernel.write_text("__global__ void f(float* y) { y[threadIdx.x] += 1; }\n")
    (tmp_path / "old.json").write_text('{"environment": {"commit": ""}, "results": [{"us": 1.50}]}')
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "measured"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    for name in ("ROOT", "RESULTS"):
        monkeypatch.setattr(records, name, tmp_path)
    monkeypatch.setenv("PATH", f"{Path(nvcc).parent}{os.pathsep}{toolchain.tool_path()}")
    records.note("old", {"commit": commit, "sources": sources.state(["lesson"], root=tmp_path)})
    for text, told in (
        ("void g(float* y) { y[threadIdx.x] += 1;", "is that"),
        ("void g(float* y) { y[0] += 1;", "is not"),
    ):
        kernel.write_text(f"__global__ {text} }}\n")
        records.changed_files.cache_clear()
        assert records.changed_files("old") == ("lesson/sum.cu",)
        assert f"machine code {told}" in records.renew("old")
    records.changed_files.cache_clear()
    assert records.changed_files("old") == ("lesson/sum.cu",)
    assert (tmp_path / "old.json").read_text().endswith('"results": [{"us": 1.50}]}')
    records.changed_files.cache_clear()


def test_notebook_is_stored_without_outputs():
    """In Jupyter: Kernel, Restart and Clear Outputs; then save."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.thorough
@pytest.mark.anywhere
def test_notebook_runs(monkeypatch, tmp_path):
    """From the first cell to the last."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch.compile does not notice a changed gradient
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    text = str(notebook.cells)
    assert "race in broken.cu" in text
    assert "torch_launch_add2" in text


@pytest.mark.parametrize("page", PAGES[:2], ids=name)
def test_readme(page):
    reached = {link.replace(".zh-CN", "") for link in links(page)}
    assert {f"docs/{each.name}".replace(".zh-CN", "") for each in DOCS} <= reached


def sections(text, fence=""):
    """{name: {label: value}} of a program's output, or of a page: its headings are the output's first lines."""
    found = re.findall(rf"^(?:## )?(\w+): (.*)\n{fence}((?:  .*\n)+)", text, re.MULTILINE)
    rows = {name: [f"title  {title}", *lines.splitlines()] for name, title, lines in found}
    return {name: dict(re.split(r"  +|: ", row.strip(), maxsplit=1) for row in rows[name]) for name in rows}


@pytest.fixture(scope="module")
def mistakes(run):
    return sections(run("examples/mistakes/mistakes.py", *TITLES, cwd="/", PATH=toolchain.tool_path()).stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TITLES)
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
    assert sections(MISTAKES, fence="\n```text\n").get(name, shown) == shown  # the page tells two mistakes in words


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
