"""What the solutions of the exercises share: a copy of the project to change, and programs that run in it.

    python3 docs/solutions/1_operator.py        # all solutions of a page
    python3 docs/solutions/1_operator.py 3      # one of them

Each does what its exercise asks for, shows what comes of it, and stops with an AssertionError should that be
anything else than what the page says.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lab import toolchain  # noqa: E402

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "build", "dist", "*.so", "*.egg-info", "__pycache__")


class Missing(Exception):
    """What an exercise needs, and this machine has not."""


def need_gpus(count: int = 1) -> None:
    if torch.cuda.device_count() < count:
        raise Missing("a GPU" if count == 1 else f"{count} GPUs")


def need_nvcc() -> None:
    if toolchain.find_nvcc() is None:
        raise Missing("nvcc, and a torch with CUDA")


@contextmanager
def copy_of_project() -> Iterator[Path]:
    """A copy to change; it is gone afterwards, and so is what was built from it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "add2")
        shutil.copytree(ROOT, copy, ignore=_LEFT_OUT)
        yield copy


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text that is in the file once."""
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
    print(f"   {file.name}: {old.strip()!r} becomes {new.strip()!r}" if len(new) < 80 else f"   {file.name}: new code")
    file.write_text(text.replace(old, new))


def run(*command: object, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program (Python's arguments, if it is a script or `-m`); its output, stderr's too, comes as stdout."""
    words = [str(word) for word in command]
    if words[0].endswith(".py") or words[0] == "-m":
        words.insert(0, sys.executable)
    print("   $", *[Path(words[0]).name, *words[1:]])
    cache = {} if folder == ROOT else {"TORCH_EXTENSIONS_DIR": str(folder / "jit cache")}
    env = os.environ | {"PATH": toolchain.tool_path()} | cache | variables
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(words, cwd=folder, env=env, text=True, check=False, **streams)


def show(text: str, *words: str) -> None:
    """Print the lines that have one of the words in them; without words, all."""
    for line in text.splitlines():
        if not words or any(word in line for word in words):
            print("  |", line[:200])


def main() -> int:
    page = sys.modules["__main__"]
    solutions = {name[9:]: function for name, function in vars(page).items() if name.startswith("exercise_")}
    parser = argparse.ArgumentParser(description=page.__doc__)
    parser.add_argument("number", nargs="?", choices=solutions, help="one exercise (default: all)")
    number = parser.parse_args().number
    if number is None:  # each in a process of its own, as an operator can be registered once in a process
        return max(subprocess.run([sys.executable, page.__file__, number]).returncode for number in solutions)
    print(f"{number}. {solutions[number].__doc__}", flush=True)
    try:
        solutions[number]()
    except Missing as missing:
        print(f"   This needs {missing}, which is not here.")
    return 0
