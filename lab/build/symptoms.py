"""Looks up in docs/troubleshooting.md what an error of a compiler, a linker, a loader or torch means."""

import re
from pathlib import Path

from .cache import ROOT
from .toolchain import Failure

PAGE = ROOT / "docs" / "troubleshooting.md"
ENTRY = re.compile(r"^- ((?:`[^`]+`(?:, )?)+): (.+)\. \*Cure:\* (.+)\. \([^(]*\)$", re.MULTILINE)


def explain(message: str, running: bool = False) -> str | None:
    """The cause and the cure of an error, in two lines; None for one that the page does not know. running: the message
    comes from a call of the operator, where "File exists" is another error."""
    page = PAGE.read_text() if PAGE.exists() else ""
    if running:
        page = page.partition("## When the library is loaded or called\n")[2].partition("\n## ")[0]
    for spans, cause, cure in ENTRY.findall(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", page)):  # a link's text
        for span in spans.split("`")[1::2]:
            if re.search(".*".join(map(re.escape, re.split(r" ?\.\.\. ?", span))), message):
                return f"Cause: {cause}.\nCure: {cure}."
    return None


def with_cure(what: str, error: BaseException) -> Failure:
    message = f"{what}: {whole(error)}"
    return Failure("\n".join(filter(None, [message, explain(message)])))


def whole(error: BaseException) -> str:
    """The text of an error and of those that caused it: torch puts the loader's message behind one of its own."""
    return str(error) + (f"\n{whole(error.__cause__)}" if error.__cause__ else "")


def failure(error: Exception, log: Path) -> Failure:
    """A build has failed: the first lines that matter, and the cure if we know one. The log gets it all."""
    text = whole(error)
    log.write_text(text)
    lines = text.splitlines()
    real = [line for line in lines if re.search("error:|error |fatal|cannot find -l|undefined ", line)]
    shown = real or [line for line in lines if re.search("[Ee]rror|FAILED", line)] or lines[-5:]
    parts = ["The build failed:", *(f"    {line}" for line in shown[:5]), explain(text)]
    return Failure("\n".join([*filter(None, parts), f"The whole log: {log}"]))
