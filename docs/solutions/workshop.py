"""Shared by the solutions of the exercises: a copy of the project to change, and programs that run in it.

    python3 docs/solutions/3_operator.py        # all solutions of a page
    python3 docs/solutions/3_operator.py 3      # one of them

Each does what its exercise asks for, and ends in an AssertionError if the page is wrong about the result.
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
sys.path[:0] = map(str, [ROOT, *(ROOT / "examples").iterdir()])

from lab.build import leftovers, toolchain  # noqa: E402


class Missing(Exception):
    """An exercise needs something that this machine does not have."""


def need_gpus(count: int = 1) -> None:
    if torch.cuda.device_count() < count:
        raise Missing(f"{count} GPU" + "s" * (count > 1))


def need_nvcc() -> None:
    if toolchain.find_nvcc() is None:
        raise Missing("nvcc, and a torch with CUDA")
    os.environ["ADD2_WITH_CUDA"] = "1"


@contextmanager
def copy_of_project() -> Iterator[Path]:
    """A copy to change, and to build in; both are deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copytree(ROOT, Path(folder, "add2"), ignore=leftovers))


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text that is in the file once."""
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
    print(f"   {file.name}: {old.strip()!r} becomes {new.strip()!r}" if len(new) < 80 else f"   {file.name}: new code")
    file.write_text(text.replace(old, new))


def environment(folder: Path) -> dict[str, str]:
    """For programs that run in a folder. A copy of the project has caches of its own; its kernels are left out where
    they cannot run, unless the exercise has called need_nvcc()."""
    caches = {"TORCH_EXTENSIONS_DIR": "jit cache", "TORCHINDUCTOR_CACHE_DIR": "compile-cache"}
    own = {} if folder == ROOT else {variable: str(folder / name) for variable, name in caches.items()}
    if own and not torch.cuda.is_available():
        own["ADD2_WITH_CUDA"] = os.environ.get("ADD2_WITH_CUDA", "0")
    return os.environ | {"PATH": toolchain.tool_path()} | own


def run(*command: object, folder: Path = ROOT, status: int | None = 0, **variables: str) -> str:
    """Run a program (Python's arguments, if it is a script or `-m`), and return what it prints on stdout and stderr.

    It must end with `status` (None: any).
    """
    words = [str(word) for word in command]
    if words[0].endswith(".py") or words[0] == "-m":
        words.insert(0, sys.executable)
    print("   $", *[Path(words[0]).name, *words[1:]])
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, cwd=folder, env=environment(folder) | variables, text=True, check=False, **streams)
    assert status in (None, done.returncode), f"exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def show(text: str, *words: str) -> None:
    """Print the lines that have one of the words in them; without words, all."""
    for line in text.splitlines():
        if not words or any(word in line for word in words):
            print("  |", line[:200])


def main() -> None:
    """Run the solutions of the page whose file has been started: that one, or all."""
    page = sys.modules["__main__"]
    solutions = {name[9:]: function for name, function in vars(page).items() if name.startswith("exercise_")}
    parser = argparse.ArgumentParser(description=page.__doc__)
    parser.add_argument("number", nargs="?", choices=solutions, help="one exercise (default: all)")
    number = parser.parse_args().number
    if number is None:  # each in a process of its own, as an operator can be registered once in a process
        sys.exit(max(subprocess.run([sys.executable, page.__file__, number]).returncode for number in solutions))
    print(f"{number}. {solutions[number].__doc__}", flush=True)
    try:
        solutions[number]()
    except Missing as missing:
        print(f"   This needs {missing}, which is not here.")
