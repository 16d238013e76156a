"""Commands that a build starts, and those of compilers and linkers in what they print."""

import re
import shlex
import subprocess
from pathlib import Path

from . import symptoms, toolchain


def run(steps: list[list[str]], variables: dict[str, str], log: Path) -> list[str]:
    """Run commands in the project's folder. Returns those of compilers and linkers that ran.

    Raises:
        Failure: one failed. The log has the whole output.
    """
    env = toolchain.environment() | variables
    with log.open("w") as output:
        for step in steps:
            print("$", shlex.join(step), file=output, flush=True)
            root = Path(__file__).resolve().parents[2]
            if subprocess.run(step, cwd=root, env=env, stdout=output, stderr=subprocess.STDOUT).returncode:
                raise symptoms.failure(log)
    return from_log(log.read_text(errors="replace"))


def from_log(log: str) -> list[str]:
    """The compiler and linker commands in the output of ninja, make or setuptools."""
    tools = re.compile(r"(\S*/)?(\S*(c\+\+|g\+\+|clang\+\+)(-\d+)?|nvcc|ccache|sccache) ")
    lines = [re.sub(r"^\[\d+/\d+\] ", "", line) for line in log.splitlines()]  # what ninja puts before a command
    commands = [line.removeprefix(": && ").removesuffix(" && :") for line in lines]
    return [command for command in commands if tools.match(command)]
