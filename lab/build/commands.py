"""Builds that run commands, setup and cmake; and the commands of compilers and linkers in what they print."""

import re
import shlex
import subprocess
from pathlib import Path

from . import cmake, setup, toolchain
from .cache import COPIES, ROOT

STEPS = {"setup": setup.steps, "cmake": cmake.steps}


def recipe(compiler: str) -> list[list[str]]:
    """The commands, for any folder."""
    return STEPS[compiler]("FOLDER")


def build(compiler: str, folder: Path) -> tuple[Path, list[str]]:
    """The library, built in a folder, and the commands of compilers and linkers that ran.

    Raises:
        RuntimeError: a command failed. The text is all that was printed.
    """
    said = ""
    for step in STEPS[compiler](str(folder)):
        to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        done = subprocess.run(step, cwd=ROOT, env=toolchain.environment(), **to)
        said += f"$ {shlex.join(step)}\n{done.stdout}"
        if done.returncode:
            raise RuntimeError(said)
    return folder / COPIES[compiler], from_log(said)


def from_log(log: str) -> list[str]:
    """The compiler and linker commands in the output of ninja, make or setuptools."""
    tools = re.compile(r"(\S*/)?(\S*(c\+\+|g\+\+|clang\+\+)(-\d+)?|nvcc|ccache|sccache) ")
    lines = [re.sub(r"^\[\d+/\d+\] ", "", line) for line in log.splitlines()]  # what ninja puts before a command
    commands = [line.removeprefix(": && ").removesuffix(" && :") for line in lines]
    return [command for command in commands if tools.match(command)]
