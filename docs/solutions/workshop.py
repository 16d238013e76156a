"""Shared by the solutions that are programs.

    python3 docs/solutions/8_timing.py        # all of a page
    python3 docs/solutions/8_timing.py 3      # one of them

Each does what its exercise asks for, and ends in an AssertionError if the page is wrong about the result.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = map(str, [ROOT, *(ROOT / "examples").iterdir()])


class Missing(Exception):
    """An exercise needs something that this machine does not have."""


def need_gpu() -> None:
    if not torch.cuda.is_available():
        raise Missing("a GPU")


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
