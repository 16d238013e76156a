"""The commands of a build, out of its log: which compiler and linker ran, or why one failed."""

import re
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


def fold(command: str) -> str:
    """The same command for reading: a run of include folders becomes one word."""
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        count = len(re.findall(r"-I|-isystem", match[0]))
        return f"-I...({count} folders) "

    return _INCLUDES.sub(replace, command)


def explain_failure(log: str, path: Path, lines: int = 5) -> str:
    """The first errors in the log of a failed build, and where the whole log is."""
    errors = [
        line
        for line in log.splitlines()
        if re.search(r"\berror\b|\bError\b|\bfatal\b|FAILED|cannot find -l|undefined ", line)
    ]
    real = (
        [line for line in errors if re.search("error:|error |fatal|cannot find -l|undefined ", line)]
        or errors
        or log.splitlines()[-lines:]
    )
    verdict = symptoms.explain(log)
    text = ["The build failed:", *(f"    {line}" for line in real[:lines]), *([verdict] if verdict else [])]
    return "\n".join([*text, f"The whole log: {path}"])
