"""Grade an operator on the CPU: lab/referee asks of it what torch, its compilers and its users will ask."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch._dynamo  # the referee needs it: once here, not in each fork
from answers import import_answer, line_of, named_errors, quote, short_errors
from grading import NotYet
from torch.utils import cpp_extension

from lab.referee import Finding, Operator, SpecError, judge

FORK = multiprocessing.get_context("fork")
LIMIT_S = 60  # for loading and judging an answer in Python
LIMIT_TO_COMPILE_S = 240  # for one in C++
QUIET_S = 5  # then the limit is shown
STABLE = re.compile(r'^\s*#\s*include\s*[<"]torch/csrc/stable/', re.M)
THINK_OF_AN_ERROR = "Read the error. What has the value that the line uses, and what does the line expect?"
THINK_OF_AN_EXIT = "Which line calls sys.exit, exit or os._exit? An operator returns a result, or raises an error."


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
        operator = None
        try:
            operator = Operator(name, **facts)
            for check in (*right, *allowed):  # one by one: nothing is asked after the first fault
                [finding] = judge(operator, device, checks=[check])
                line = failing_line(operator, device, answer) if finding.verdict == "error" else ""
                require(finding, check in right, line)
        except SpecError as error:
            line = failing_line(operator, device, answer) if operator else ""
            raise explain(error, name, answer, line) from None
        with named_errors(answer, "raises an error"):
            also()
        return [f"{name}: right in these checks of the referee: {', '.join((*right, *allowed))}"]

    try:
        return apart(work, LIMIT_TO_COMPILE_S if load else LIMIT_S)
    except NotYet as found:
        found.think = found.think or think.get(found.kind, "What differs here from the plain call, which is right?")
        raise


def failing_line(operator: Operator, device: str, answer: Path) -> str:
    """The referee has seen an error in another process: the answer's line that raises it in a call and its gradient."""
    try:
        inputs = operator.fresh(device)
        for number in operator.gradients:
            inputs[number].requires_grad_()
        results = operator.run(inputs)
        if operator.gradients:
            sum(result.sum() for result in results).backward()
    except Exception as error:
        number = line_of(error.__cause__ or error, answer)
        return quote(answer, number) if number else ""
    return ""


def require(finding: Finding, must_be_right: bool, line: str = "") -> None:
    """NotYet unless a finding is good enough. line: of the answer, where it raises an error."""
    asked = f"The referee asks: {finding.question}"
    if finding.is_wrong:
        think = THINK_OF_AN_ERROR if line else ""
        if "SystemExit" in finding.message:
            think = THINK_OF_AN_EXIT
        where = "\n".join(part for part in (line, asked) if part)
        raise NotYet(finding.check, f"{finding.check}: {finding.message.rstrip('.')}.", where, think)
    if must_be_right and finding.verdict != "right":
        how = "it fails" if finding.verdict == "refused" else f"it is {finding.verdict}"
        what = f"{finding.check}: expected the right result, but {how}: {finding.message}"
        raise NotYet(finding.check, f"{what.rstrip('.')}.", asked)


def explain(error: SpecError, name: str, answer: Path, line: str) -> NotYet:
    """An error of the plain call, with the line of the answer that raises it."""
    text = str(error)
    if "torch.ops has no such operator" in text:
        think = "Which line registers it? The skeleton has it."
        return NotYet("call", f"{answer.name} registers no operator {name}.", think=think)
    text = text.partition(" This could be because")[0]  # torch goes on with all dispatch keys
    what = text.replace("call(*inputs) fails", "the plain call fails").rstrip(".") + "."
    return NotYet("call", what, line, THINK_OF_AN_ERROR)


def load_library(answer: Path) -> None:
    """Compile an answer in C++ and load it: its static objects register operators."""
    options = ["-O1", "-std=c++20", "-w", "-shared", "-fPIC"]
    if STABLE.search(answer.read_text("utf-8")):  # with this macro torch/library.h cannot be included
        options.append("-DTORCH_TARGET_VERSION=0x020a000000000000")
    folders = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "answer.so")
        compiler = os.environ.get("CXX", "g++")
        command = [compiler, *options, *folders, str(answer), *libraries, "-o", str(library)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            raise NotYet("machine", f"{compiler} is not installed: sudo apt-get install g++, or set CXX") from None
        if done.returncode:
            think = "Read the first error; the others often follow from it."
            raise NotYet("compile", f"{answer.name} does not compile.", short_errors(done.stderr, answer), think)
        with named_errors(answer, "does not load"):
            torch.ops.load_library(str(library))


def apart(work: Callable[[], list[str]], limit_s: int) -> list[str]:
    """Call a function in a fork: an operator's name can be registered once in a process, and an answer may crash."""
    reader, writer = FORK.Pipe(duplex=False)

    def child() -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the referee then ends its own processes
        torch.set_num_threads(1)  # a fork has no threads of OpenMP
        try:
            writer.send((True, work()))
        except NotYet as found:
            writer.send((False, (found.kind, found.what, found.where, found.think)))

    process = FORK.Process(target=child)
    process.start()
    writer.close()
    try:
        if not reader.poll(QUIET_S):
            print(f"  Still running. It is stopped after {limit_s} s.", file=sys.stderr, flush=True)
            if not reader.poll(limit_s - QUIET_S):
                think = "Which loop or wait never ends?"
                raise NotYet("hang", f"The answer did not end within {limit_s} s.", think=think)
        has_passed, what = reader.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        if code >= 0:
            what = f"The answer has ended its process (exit status {code})."
            raise NotYet("exit", what, think=THINK_OF_AN_EXIT) from None
        how = signal.Signals(-code).name
        think = "Which memory does it touch, and is that memory of a tensor?"
        raise NotYet("crash", f"The answer has crashed ({how}).", think=think) from None
    finally:
        process.terminate()
        process.join(2)
        process.kill()
        process.join()
    if has_passed:
        return what
    raise NotYet(*what)
