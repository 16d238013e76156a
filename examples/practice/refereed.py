"""Grade an operator on the CPU: lab/referee asks of it what torch, its compilers and its users will ask."""

import multiprocessing
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch._dynamo  # the referee needs it: once here, not in each fork
from answers import import_answer, named_errors, short_errors
from grading import NotYet
from torch.utils import cpp_extension

from lab.referee import Finding, Operator, SpecError, judge

FORK = multiprocessing.get_context("fork")
LIMIT_S = 240  # for loading and judging an answer


def grade_operator(
    answer: Path,
    name: str,
    *,
    right: Sequence[str],
    allowed: Sequence[str] = (),
    think: Mapping[str, str],
    before: Callable[[], None] = lambda: None,
    also: Callable[[], None] = lambda: None,
    device: str = "cpu",
    load: Callable[[Path], None] | None = None,
    **facts: object,
) -> list[str]:
    """Load an answer, which registers an operator, and judge it. NotYet says what is wrong.

    right: the referee's checks whose answer must be "right". allowed: those that may also be "refused". The first one
    that is wrong is shown, with the question think[check]. before, also: look at what the referee does not ask, before
    it and after it; they raise NotYet.
    load: how to load the answer (default: as a module of Python). facts: of lab.referee.Operator.
    """

    def work() -> list[str]:
        (load or import_answer)(answer)
        with named_errors(answer, "raises an error"):
            before()
        try:
            operator = Operator(name, **facts)
            for check in (*right, *allowed):  # one by one: nothing is asked after the first fault
                [finding] = judge(operator, device, checks=[check])
                require(finding, check in right)
        except SpecError as error:
            raise NotYet("call", explain(error, name, answer)) from None
        with named_errors(answer, "raises an error"):
            also()
        return [f"{name}: right in these checks of the referee: {', '.join((*right, *allowed))}"]

    try:
        return apart(work)
    except NotYet as found:
        found.think = found.think or think.get(found.kind, "What differs here from the plain call, which is right?")
        raise


def require(finding: Finding, must_be_right: bool) -> None:
    """NotYet unless a finding is good enough."""
    asked = f"The referee asks: {finding.question}"
    if finding.is_wrong:
        raise NotYet(finding.check, f"{finding.check}: {finding.message.rstrip('.')}.", asked)
    if must_be_right and finding.verdict != "right":
        what = f"{finding.check}: expected the right result, but it is {finding.verdict}: {finding.message}"
        raise NotYet(finding.check, f"{what.rstrip('.')}.", asked)


def explain(error: SpecError, name: str, answer: Path) -> str:
    """An error of the plain call."""
    text = str(error)
    if "torch.ops has no such operator" in text:
        return f"{answer.name} registers no operator {name}."
    return text.replace("call(*inputs) fails", "the plain call fails") + "."


def load_library(answer: Path) -> None:
    """Compile an answer in C++ and load it: its static objects register operators."""
    options = ["-O1", "-std=c++20", "-w", "-shared", "-fPIC", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    folders = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "answer.so")
        compiler = os.environ.get("CXX", "g++")
        command = [compiler, *options, *folders, str(answer), *libraries, "-o", str(library)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            raise NotYet("compile", f"{compiler} is not installed: sudo apt-get install g++, or set CXX.") from None
        if done.returncode:
            think = "Read the first error; the others often follow from it."
            raise NotYet("compile", f"{answer.name} does not compile.", short_errors(done.stderr, answer), think)
        with named_errors(answer, "does not load"):
            torch.ops.load_library(str(library))


def apart(work: Callable[[], list[str]]) -> list[str]:
    """Call a function in a fork: an operator's name can be registered once in a process, and an answer may crash."""
    reader, writer = FORK.Pipe(duplex=False)

    def child() -> None:
        torch.set_num_threads(1)  # a fork has no threads of OpenMP
        try:
            writer.send((True, work()))
        except NotYet as found:
            writer.send((False, (found.kind, found.what, found.where, found.think)))

    process = FORK.Process(target=child)
    process.start()
    writer.close()
    try:
        if not reader.poll(LIMIT_S):
            raise NotYet("hang", f"The answer did not end within {LIMIT_S} s.", think="Which loop or wait never ends?")
        has_passed, what = reader.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        think = "Which memory does it touch, and is that memory of a tensor?"
        raise NotYet("crash", f"The answer has crashed ({how}).", think=think) from None
    finally:
        process.kill()
        process.join()
    if has_passed:
        return what
    raise NotYet(*what)
