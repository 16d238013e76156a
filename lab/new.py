"""Start an operator of your own from this one: `python3 -m lab.new NAME FOLDER --build setup|cmake|jit`.

A small project: the operator's sources, called NAME; one build; and from examples/template/ tests and a benchmark. It
builds and passes its tests as it is: it still adds. docs/your-own.md tells what to change then.
"""

import argparse
import builtins
import importlib.util
import keyword
import re
import sys
import tempfile
from pathlib import Path

import torch

from .build.cache import ROOT

TEMPLATE = ROOT / "examples" / "template"
TAKEN = Path(__file__).parent / "taken_names.txt"
OPERATOR = ["include/add2.h", "kernel/add2.cpp", "kernel/add2_cpu.cpp", "kernel/add2_kernel.cuh"]
OPERATOR += ["kernel/add2_kernel.cu", "add2/ops.py", "add2/fake.py", "add2/function.py"]
COMMON = {"__init__.py": "add2/__init__.py", "tests.py": "tests/test_add2.py", "benchmark.py": "benchmark.py"}
COMMON |= {"README.md": "README.md", "gitignore": ".gitignore"}
BUILDS = {  # the file of each, and the command
    "setup": ("setup.py", "setup.py", "python3 -m pip install --no-build-isolation -e ."),
    "cmake": (
        "CMakeLists.txt",
        "CMakeLists.txt",
        "cmake -S . -B build -DTORCH_DIR=$(python3 -c 'import torch; print(torch.__path__[0])') && cmake --build build",
    ),
    "jit": ("jit.py", "add2/jit.py", "python3 -c 'import add2'"),
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
    prose = re.compile(r'//.*|# .*|"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"')  # comments and texts
    for part in OPERATOR:
        if re.search(rf"\b{name}\b", prose.sub(" ", (ROOT / part).read_text())):
            return f"{part} uses it for something else"
    if (spec := importlib.util.find_spec(name)) and spec.origin:
        return f"a Python package of that name is installed, in {Path(spec.origin).parent}"
    return None


def rename(text: str, name: str) -> str:
    """The text with add2 called `name`: add2, ADD2 and Add2; but not __hadd2, which is an intrinsic of CUDA."""
    text = re.sub(r"(?<!__h)add2", name, text)
    return text.replace("ADD2", name.upper()).replace("Add2", name.title().replace("_", ""))


def texts(build: str) -> dict[str, str]:
    """The project's files, in which the operator is still called add2."""
    found = {part: (ROOT / part).read_text() for part in OPERATOR}
    # Without DTensors (add2/sharding.py) and the layer: few operators need them at first.
    ops = re.sub(r"^    if .*\n        sharding\.\w+\(\)\n", "", found["add2/ops.py"], flags=re.MULTILINE)
    found["add2/ops.py"] = ops.replace("import fake, sharding", "import fake")
    found["add2/function.py"] = found["add2/function.py"].split("\n\n\ndef launch(")[0].rstrip("\n") + "\n"
    source, target, command = BUILDS[build]
    for part, where in (COMMON | {source: target}).items():
        found[where] = (TEMPLATE / part).read_text().replace("BUILD_COMMAND", command)
    if build == "jit":  # which loads the library itself
        block = re.compile(r"^    if not \(_library.*?^(?=\n)", re.MULTILINE | re.DOTALL)
        text = block.sub("    from . import jit  # noqa: F401  (builds what has changed)\n", found["add2/__init__.py"])
        found["add2/__init__.py"] = text.replace("from pathlib import Path\n\n", "")
    return found


def create(name: str, folder: Path, build: str) -> None:
    """Write the project into a new folder, all of it or nothing.

    Raises:
        ValueError: the name or the folder will not do.
    """
    if reason := reason_against(name):
        raise ValueError(f"{name!r} cannot be the operator's name: {reason}")
    folder = folder.resolve()
    if folder.is_relative_to(ROOT):
        raise ValueError(f"{folder} is inside this project; name a folder outside, such as ../{name}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already, and not empty")
    files = texts(build)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as unfinished:
        for target, text in files.items():
            path = Path(unfinished, "project", rename(target, name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rename(text, name))
        Path(unfinished, "project").replace(folder)  # which may be there, and empty


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.new", description="Start an operator of your own.")
    parser.add_argument("name", help="of the operator, such as scaled_add")
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--build", choices=BUILDS, default="setup", help="how it is built (default: %(default)s)")
    args = parser.parse_args()
    try:
        create(args.name, args.folder, args.build)
    except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: links in a circle, up to Python 3.12
        parser.error(str(error))
    print(f"{args.folder} has the operator {args.name}, which adds. Next:\n\n    cd {args.folder}")
    print(f"    {rename(BUILDS[args.build][2], args.name)}\n    python3 -m pytest\n    python3 benchmark.py")
    print("\nWhat to change then: README.md there, and docs/your-own.md here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
