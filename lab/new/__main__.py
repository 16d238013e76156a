"""Start an operator of your own from this one: `python3 -m lab.new NAME FOLDER --build setup|cmake|jit`.

A small project: the operator's sources, called NAME; one build; tests and a benchmark from template/. It builds and
passes its tests as it is: it still adds. docs/your-own.md tells what to change then.
"""

import argparse
import builtins
import importlib.util
import keyword
import re
import shutil
import sys
import tempfile
import tokenize
from pathlib import Path

import torch

from ..build.cache import ROOT

TEMPLATE = Path(__file__).parent / "template"
TAKEN = Path(__file__).parent / "taken_names.txt"
SOURCES = ["add2.h", "add2.cpp", "add2_cpu.cpp", "add2_kernel.cuh", "add2_kernel.cu"]
COMMON = {"__init__.py": "add2/__init__.py", "tests.py": "tests/test_add2.py", "benchmark.py": "benchmark.py"}
COMMON |= {"README.md": "README.md", "gitignore": ".gitignore"}
BUILDS = {
    "setup": {"setup.py": "setup.py"},
    "cmake": {"CMakeLists.txt": "CMakeLists.txt"},
    "jit": {"jit.py": "add2/jit.py"},
}
COMMANDS = {
    "setup": "python3 -m pip install --no-build-isolation -e .",
    "cmake": "cmake -S . -B build -DTORCH_DIR=$(python3 -c 'import torch; print(torch.__path__[0])')"
    " && cmake --build build",
    "jit": "python3 -c 'import add2'",
}


def reason_against(name: str) -> str | None:
    """Why an operator cannot be called so; None if it can."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        return "expected small letters, digits and single _, with a letter first"
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or hasattr(builtins, name):
        return "it is a keyword, a module or a function of Python's own"
    for reason, words in re.findall(r"(.*):\n((?:.+\n)+)", TAKEN.read_text()):
        if name in words.split():
            return reason
    if name in dir(torch.ops):
        return "torch.ops has something else of that name"
    if found := next((part for part in operator() if name in _names_in(ROOT / part)), None):
        return f"{found} uses it for something else"
    if (spec := importlib.util.find_spec(name)) and spec.origin:
        return f"a Python package of that name is installed, in {Path(spec.origin).parent}"
    return None


def operator() -> list[str]:
    """The operator's files: its sources, ops.py, and the modules of add2/ that ops.py needs."""
    found = [str(path.relative_to(ROOT)) for name in SOURCES for path in ROOT.glob(f"[ik]*/{name}")]
    modules = ["ops"]
    for module in modules:  # grows while it is read
        code = _read(f"add2/{module}.py")
        for plain, several in re.findall(r"^ *from \.(\w+) import|^ *from \. import ([\w, ]+)", code, re.MULTILINE):
            modules += {word.strip() for word in [plain, *several.split(",")]} - {"", *modules}
    return found + [f"add2/{module}.py" for module in modules]


def _read(part: str) -> str:
    """A file of the operator, without DTensors (add2/sharding.py) and the layer: few operators need them at first."""
    text = (ROOT / part).read_text()
    if part == "add2/function.py":
        text = text.split("\n\n\ndef launch(")[0].rstrip("\n") + "\n"
    if part == "add2/ops.py":
        text = re.sub(r"^    if .*\n        sharding\.\w+\(\)\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"^(from \. import .*), sharding\b", r"\1", text, flags=re.MULTILINE)
    return text


def _names_in(source: Path) -> set[str]:
    """The names in a source file; not the words in its comments and texts."""
    if source.suffix == ".py":
        with source.open("rb") as file:
            return {token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.NAME}
    code = re.sub(r'//.*|"(\\.|[^"\\])*"', " ", source.read_text())
    return set(re.findall(r"[A-Za-z_]\w*", code))


def rename(text: str, name: str) -> str:
    """The text with add2 called `name`: add2, ADD2 and Add2; but not __hadd2, which is an intrinsic of CUDA."""
    text = re.sub(r"(?<!__h)add2", name, text)
    return text.replace("ADD2", name.upper()).replace("Add2", name.title().replace("_", ""))


def create(name: str, folder: Path, build: str) -> None:
    """Write the project into a new folder, all of it or nothing.

    Raises:
        ValueError: the name or the folder will not do.
    """
    if reason := reason_against(name):
        raise ValueError(f"{name!r} cannot be the operator's name: {reason}")
    try:
        folder = folder.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, up to Python 3.12
        raise ValueError(f"{folder} cannot be opened: {error}") from error
    if folder.is_relative_to(ROOT):
        raise ValueError(f"{folder} is inside this project; name a folder outside, such as ../{name}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already, and not empty")
    texts = {part: _read(part) for part in operator()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    for part, target in (COMMON | BUILDS[build]).items():
        texts[target] = (TEMPLATE / part).read_text().replace("BUILD_COMMAND", COMMANDS[build])
    if build == "jit":
        texts["add2/__init__.py"] = _without_library(texts["add2/__init__.py"])
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as unfinished:
        for target, text in texts.items():
            path = Path(unfinished, "project", rename(target, name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rename(text, name))
        if folder.exists():
            folder.rmdir()  # an empty one
        shutil.move(Path(unfinished, "project"), folder)


def _without_library(text: str) -> str:
    """__init__.py for the jit build, which loads the library itself."""
    block = re.compile(r"^    if not \(_library.*?^(?=\n)", re.MULTILINE | re.DOTALL)
    text, count = block.subn("    from . import jit  # noqa: F401  (builds what has changed)\n", text)
    assert count == 1
    return text.replace("from pathlib import Path\n\n", "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.new", description="Start an operator of your own.")
    parser.add_argument("name", help="of the operator, such as scaled_add")
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--build", choices=BUILDS, default="setup", help="how it is built (default: %(default)s)")
    args = parser.parse_args()
    try:
        create(args.name, args.folder, args.build)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename or args.folder}: {error.strerror}")
    print(f"{args.folder} has the operator {args.name}, which adds. Next:\n\n    cd {args.folder}")
    print(f"    {rename(COMMANDS[args.build], args.name)}\n    python3 -m pytest\n    python3 benchmark.py")
    print("\nWhat to change then: README.md there, and docs/your-own.md here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
