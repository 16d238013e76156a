"""Read an answer: as a module of Python, or as a list of choices; and quote it."""

import importlib.util
import re
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from grading import NotYet


def import_answer(answer: Path) -> ModuleType:
    """Run an answer as a module."""
    spec = importlib.util.spec_from_file_location("answer", answer.resolve())
    module = sys.modules["answer"] = importlib.util.module_from_spec(spec)
    with named_errors(answer, "does not load"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def named_errors(answer: Path, what: str) -> Iterator[None]:
    """NotYet for an error of the answer's code: the error, and the last line of the answer that led to it."""
    try:
        yield
    except NotYet:
        raise
    except Exception as error:
        number = line_of(error, answer)
        message = (str(error).strip().splitlines() or [""])[0]
        what = f"{answer.name} {what}: {type(error).__name__}: {message}"
        think = "Read the error. The line is the last one of the answer before it was raised."
        raise NotYet("raised", what, quote(answer, number) if number else "", think) from None


def line_of(error: BaseException, answer: Path) -> int | None:
    """The last line of the answer that led to an error."""
    path = str(answer.resolve())
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == path]
    return lines[-1] if lines else getattr(error, "lineno", None)


def read_choices(answer: Path, questions: Collection[str]) -> dict[str, str]:
    """The words or numbers of a file of lines `question = answer`; # begins a comment. NotYet if one is missing."""
    found: dict[str, str] = {}
    for number, line in enumerate(answer.read_text("utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        name, mark, value = (part.strip() for part in text.partition("="))
        if not text:
            continue
        if not mark or name not in questions:
            what = f"Line {number} is {line.strip()!r}; expected `question = answer`"
            what += f", with one of {', '.join(questions)}."
            raise NotYet("format", what, quote(answer, number), "The skeleton has a line for each question.")
        if name in found:
            what = f"{name} has two answers: {found[name]} and {value}."
            raise NotYet("format", what, quote(answer, number), "Which of them is right?")
        found[name] = value
    for name in questions:
        if found.get(name, "") in ("", "?"):
            raise NotYet("open", f"{name} has no answer yet.", think="The task says where to look.")
    return found


def is_number(text: str, expected: float, tolerance: float = 0.02) -> bool:
    """Whether a text is a number close to another one. NotYet if it is none."""
    try:
        return abs(float(text.replace(",", "")) - expected) <= tolerance * abs(expected)
    except ValueError:
        raise NotYet("format", f"{text!r} is not a number.", think="Write it as 12 or 3.5, without a unit.") from None


def quote(answer: Path, line: int) -> str:
    """A line of an answer, with its place."""
    lines = answer.read_text("utf-8").splitlines()
    return f"{answer.name}:{line}: {lines[line - 1].strip()}" if 0 < line <= len(lines) else ""


def short_errors(text: str, answer: Path) -> str:
    """The compiler's errors with their lines of code, at most three."""
    blocks = re.split(r"^(?=\S.*?:\d+:\d+: )", text.replace(f"{answer.resolve()}", answer.name), flags=re.MULTILINE)
    blocks = [block.partition("\nIn file included from ")[0] for block in blocks]  # of the note that follows
    errors = [block.rstrip() for block in blocks if ": error: " in block or ": fatal error: " in block]
    return "\n".join(errors[:3]) or text
