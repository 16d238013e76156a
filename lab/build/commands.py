"""The commands of a build, out of its log: which compiler and linker ran, or why one failed."""

import re
import shlex
from pathlib import Path

from . import symptoms

_STEP = re.compile(r"\[\d+/\d+\] ")  # what ninja puts before a command
_TOOLS = re.compile(r"(\S*/)?(\S*(c\+\+|g\+\+|clang\+\+)(-\d+)?|nvcc|ccache|sccache) ")
_INCLUDES = re.compile(r"((-I|-isystem[= ]?)\s*('[^']*'|\"[^\"]*\"|\S+)\s*){2,}")


def from_log(log: str) -> list[str]:
    """The compiler and linker commands in the output of ninja, make or setuptools."""
    found = []
    for line in log.splitlines():
        command = _STEP.sub("", line, count=1).removeprefix(": && ").removesuffix(" && :")
        if _TOOLS.match(command):
            found.append(command)
    return found


def merge(before: list[str], now: list[str]) -> list[str]:
    """The commands of a build of which a part was done before: those that have written what is there now."""
    written = {_output(command) for command in now}
    kept = [command for command in before if _output(command) not in written]
    return sorted([*kept, *now], key=lambda command: " -c " not in command)  # the linker's last


def _output(command: str) -> str:
    """The file that a command writes."""
    words = shlex.split(command)
    return words[words.index("-o") + 1] if "-o" in words[:-1] else command


def fold(command: str) -> str:
    """The same command for reading: a run of include folders becomes one word."""
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        count = len(re.findall(r"-I|-isystem", match[0]))
        return f"-I...({count} folders) "

    return _INCLUDES.sub(replace, command)


def explain_failure(log: str, path: Path, lines: int = 5) -> str:
    """What to print of a failed build: the first errors of its log, and where the whole log is."""
    errors = [line for line in log.splitlines() if re.search(r"\berror\b|\bError\b|FAILED", line)]
    real = [line for line in errors if "error:" in line or "error " in line] or errors or log.splitlines()[-lines:]
    verdict = symptoms.explain(log)
    text = ["The build failed:", *(f"    {line}" for line in real[:lines]), *([verdict] if verdict else [])]
    return "\n".join([*text, f"The whole log: {path}"])
