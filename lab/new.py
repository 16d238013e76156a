"""Start an operator of your own from this one: `python3 -m lab.new NAME FOLDER`.

The operator, its three builds, its tests, the workbench and the two programs are copied, and add2 is called NAME in all
of them. It builds and passes its tests as it is: it still adds. docs/your-own.md tells what to change then.
"""

import argparse
import keyword
import re
import shutil
import sys
from pathlib import Path

from .build.cache import ROOT

COPIED = ["add2", "include", "kernel", "lab", "tests/conftest.py", "tests/operator", "time.py", "train.py", "setup.py"]
COPIED += [
    "CMakeLists.txt",
    "CMakePresets.json",
    "pyproject.toml",
    "MANIFEST.in",
    "LICENSE",
    ".clang-format",
    ".gitignore",
]
_LEFT_OUT = shutil.ignore_patterns("*.so", "__pycache__", "new.py", "figures.py", "headers.py")

_README = """# {name}

A custom operator for PyTorch, started from a tutorial.

    python3 time.py --compiler jit              # builds it, checks it against torch, times it
    python3 -m pytest                           # its tests; --build setup, --build cmake: with another build
    python3 -m pip install --no-build-isolation -e .
"""


def rename(text: str, name: str) -> str:
    """The text with add2 called `name`: add2, ADD2 and Add2; but not __hadd2, which is an intrinsic of CUDA."""
    text = re.sub(r"(?<!__h)add2", name, text)
    return text.replace("ADD2", name.upper()).replace("Add2", name.title().replace("_", ""))


def create(name: str, folder: Path) -> None:
    """Copy what is needed for an operator into a new folder.

    Raises:
        ValueError: the name is no good one, or the folder is there and not empty.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        raise ValueError(
            f"'{name}' cannot be the operator's name: expected small letters, digits and _, and no word or"
            " module of Python's own"
        )
    if name in ("torch", "lab", "tests", "kernel"):
        raise ValueError(f"'{name}' is the name of something else here")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already, and not empty")
    for part in COPIED:
        source, target = ROOT / part, folder / rename(part, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=_LEFT_OUT)
        else:
            shutil.copy(source, target)
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        if path.is_file():
            path.write_text(rename(path.read_text(), name))
        path.rename(path.with_name(rename(path.name, name)))
    (folder / "README.md").write_text(_README.format(name=name))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.new", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of the operator, such as scaled_add")
    parser.add_argument("folder", type=Path, help="a new one")
    args = parser.parse_args()
    try:
        create(args.name, args.folder)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"{args.folder} has the operator {args.name}, which adds. Next:\n\n    cd {args.folder}")
    print("    python3 time.py --compiler jit && python3 -m pytest\n\nWhat to change then: docs/your-own.md, here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
