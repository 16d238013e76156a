"""The referee by itself: its command, and its processes."""

import dataclasses
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch

from lab.referee import Operator, SpecError, judge, load
from lab.referee import processes as own_processes
from lab.referee.__main__ import main
from lab.referee.judge import ask
from lab.referee.registry import CHECKS

pytestmark = pytest.mark.usefixtures("forks")

ROOT = Path(__file__).parents[1]
REFEREE = ROOT / "lab/referee"
GOOD = """
import torch
from {package} import Operator
spec = Operator("aten::mul.Tensor", inputs=lambda d: (torch.randn(3, 6, device=d), torch.randn(3, 6, device=d)),
                reference=lambda a, b: a * b, gradients=(0, 1))
"""


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path):
    """The folder by itself, in a project that has nothing else of ours."""
    shutil.copytree(REFEREE, tmp_path / "referee", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "spec.py").write_text(GOOD.format(package="referee"))
    return tmp_path


@pytest.mark.thorough
@pytest.mark.anywhere
def test_command_in_a_copied_folder(copied, run):
    """One operator that is right and one whose reference differs, by a process that has the copied folder only."""
    spec = copied / "spec.py"
    faulty = GOOD.format(package="referee").replace("lambda a, b: a * b", "lambda a, b: a + b")
    faulty = faulty.replace("spec = Operator(", "faulty = Operator(").replace(
        "gradients=", "title='faulty', gradients="
    )
    spec.write_text(spec.read_text() + faulty)
    command = ["-m", "referee", "spec.py", "--check", "values", "--check", "gradients", "--json", "found.json"]
    lines = run(*command, cwd=copied, status=1).stdout.splitlines()
    assert lines[1].startswith("right          values")
    begin = lines.index(next(line for line in lines if line.startswith("faulty on cpu")))
    assert lines[begin + 1].startswith("WRONG          values                result 0: 18 of 18 elements")
    assert "  wrong for the same reason: gradients" in lines
    right, wrong = json.loads((copied / "found.json").read_text())["operators"]
    assert [finding["verdict"] for finding in right["findings"]] == ["right", "right"]
    (copied / "reproduce.py").write_text(wrong["findings"][0]["reproducer"])
    error = run("reproduce.py", root=copied, cwd=copied, status=None).stderr
    assert "Wrong: result 0: 18 of 18 elements are wrong" in error


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("a * b", "a * c"), "reference(*inputs) fails: NameError"),
        (
            ("torch.randn(3, 6, device=d), torch", "torch.randn(3, 5, device=d), torch"),
            "call(*inputs) fails: RuntimeError",
        ),
        (("reference", "call=lambda a, b: torch.ops.aten.mul(a), reference"), "any schema: aten::mul() is missing"),
        (("(0, 1)", "(0, 5)"), "gradients names input 5; there are 2"),
        (("(0, 1))", "(0, 1)"), "spec.py:5: SyntaxError: '(' was never closed"),
        (("inputs=", "input="), "spec.py:5: TypeError: Operator.__init__() got an unexpected keyword argument 'input'"),
        (("import torch", "import torch, no_such_package"), "spec.py:3: ModuleNotFoundError: No module named"),
        (("reference", "wrong={{'size (': {{0: None}}}}, reference"), "wrong has 'size (', no regular expression"),
        (("reference", "tolerance=1e-3, reference"), "tolerance is 0.001, expected a dict"),
        (("(0, 1)", "('a',)"), "gradients names input 'a'; there are 2"),
        (("(0, 1)", "0"), "gradients is 0, expected the numbers of inputs, (0, 1)"),
        (("reference", "wrong={{'shape': {{5: None}}}}, reference"), "wrong names input 5; there are 2"),
        (("reference", "bounds={{2: (0, 9)}}, reference"), "bounds names input 2; there are 2"),
        (("reference", "bounds=(0, 9), reference"), "bounds is (0, 9), expected a dict"),
        (("reference", "sizes={{'n': [(0, 1), (1, 2)]}}, reference"), "dimension 2 of input 1, which is a tensor of 2"),
        (("reference", "tolerance={{'float32': 1e-5}}, reference"), "tolerance has 'float32', expected a dtype"),
        (("lambda d: (", "lambda d: (d + 1, "), "inputs(device) fails: TypeError"),
        (("aten::mul.Tensor", "aten::no_such"), "torch.ops has no such operator"),
        (("spec = Operator(", "Operator("), "describes no operator"),
        (("gradients=(0, 1))", "gradients=(0, 1))\n{package}.judge(spec)"), "if __name__ == '__main__':"),
    ],
)
def test_mistakes_in_a_description(tmp_path, change, words):
    """The command prints this line, and ends with exit status 2, as below."""
    spec = tmp_path / "spec.py"
    text = GOOD.replace(*change).replace("import torch", "import torch\nimport {package}")
    spec.write_text(text.format(package="lab.referee"))
    with pytest.raises(SpecError, match=re.escape(words)):
        judge(load(spec)[0], checks=["values"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no_such.py"], "no such file"),
        ([], "name a file"),
        (["spec.py", "--check", "no_such"], "no such check: no_such; there are values"),
        (["spec.py", "--operator", "no_such"], "has no operator called 'no_such'; it has aten::mul.Tensor"),
        (["spec.py", "--device", "tpu"], "expected cpu, cuda or cuda:1"),
        (["spec.py", "--json", "no/such/folder.json"], "no such folder"),
        (["spec.py", "--json", "."], "--json .: cannot be written"),
        (["spec.py", "--check", "opcheck"], "opcheck is torch's own check"),
    ],
)
def test_mistakes_in_the_command(tmp_path, monkeypatch, capsys, arguments, words):
    (tmp_path / "spec.py").write_text(GOOD.format(package="lab.referee"))
    monkeypatch.chdir(tmp_path)
    assert status_of(arguments) == 2
    assert words in capsys.readouterr().err


def status_of(arguments):
    """The exit status of the command, in this process."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def test_list(capsys):
    assert status_of(["--list"]) == 0
    found = capsys.readouterr().out
    assert all(name in found and check.question in found for name, check in CHECKS.items())


def test_checks_have_a_cure_and_a_page():
    for check in CHECKS.values():
        assert check.question.endswith(("?", ")"))
        assert check.cure
        assert (ROOT / "docs" / f"{check.page}.md").is_file(), check.page
        assert set(check.because_of) <= set(CHECKS), check.name


# --- processes -------------------------------------------------------------------------------------------------------


def ends_badly(how):
    """Described in the test, so it can only be judged by a fork."""

    def call(x):
        if len(x) > 3:  # other sizes than the first
            how()
        return x * 2

    inputs = lambda device: (torch.ones(3, device=device),)  # noqa: E731
    return Operator("a plain function", call, inputs, lambda x: x * 2)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            lambda: os.kill(os.getpid(), 11),
            "the process died: SIGSEGV, in last_elements_count(group='all of size 3', size=",
        ),
        (lambda: os._exit(3), "exit status 3"),
    ],
)
def test_a_crash_is_a_result(how, words):
    operator = ends_badly(how)
    operator.sizes = {"all of size 3": [(0, 0)]}
    (found,) = judge(operator, checks=["odd_sizes"])
    assert found.verdict == "crash"
    assert words in found.message


def test_a_hang_is_a_result():
    operator = ends_badly(lambda: time.sleep(1000))
    operator.sizes = {"all of size 3": [(0, 0)]}
    operator.learnt = {"written": [], "returned": [], "by_reference": [], "returned_by_reference": []}
    found = ask(operator, "cpu", dataclasses.replace(CHECKS["odd_sizes"], seconds=1))
    assert found.verdict == "crash"
    assert "no answer after 1 s" in found.message


@pytest.mark.thorough
def test_a_new_process_where_a_fork_does_not_survive(copied, monkeypatch):
    """As on a GPU that this process has used."""
    monkeypatch.setattr(sys.modules["lab.referee.judge"], "may_fork", lambda device: False)
    (copied / "spec.py").write_text(GOOD.format(package="lab.referee"))
    operator = load(copied / "spec.py", "aten::mul.Tensor")
    (found,) = judge(operator, checks=["values"])
    assert found.verdict == "right"
    operator._home = {}  # as if a function had made it
    with pytest.raises(SpecError, match="describe it in a file"):
        judge(operator, checks=["values"])


def test_root_is_where_the_package_is_imported_from():
    assert (own_processes.ROOT / own_processes.PACKAGE.replace(".", "/") / "__main__.py").is_file()
