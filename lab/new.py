"""Start an operator of your own from this one: `python3 -m lab.new NAME FOLDER --build setup|cmake|jit`. A small
project: the operator's sources, called NAME; one build; and from examples/template/ tests and a benchmark. It builds
and passes its tests as it is: it still adds. docs/11_your_own.md tells what to change then."""

import argparse
import builtins
import importlib.util
import keyword
import os
import re
import sys
import tempfile
from pathlib import Path

import torch

from .build.cache import ROOT

TAKEN = Path(__file__).with_name("taken_names.txt")
TEMPLATE = ROOT / "examples" / "template"
OPERATOR = ["include/add2.h", "kernel/add2.cpp", "kernel/add2_cpu.cpp", "kernel/add2_kernel.cuh"]
OPERATOR += ["kernel/add2_kernel.cu", "add2/ops.py", "add2/shapes.py", "add2/function.py"]
COMMON = {"tests.py": "tests/test_add2.py", "benchmark.py": "benchmark.py", "README.md": "README.md"}
COMMON |= {"gitignore": ".gitignore", "__init__.py": "add2/__init__.py"}
CMAKE = "cmake -S . -B build -DTORCH_DIR=$(python3 -c 'import torch; print(torch.__path__[0])') && cmake --build build"
BUILDS = {  # the files of each, and the command
    "setup": ({"setup.py": "setup.py"}, "python3 -m pip install --no-build-isolation -e ."),
    "cmake": ({"CMakeLists.txt": "CMakeLists.txt"}, CMAKE),
    "jit": ({"jit.py": "add2/jit.py", "jit_init.py": "add2/__init__.py"}, "python3 -c 'import add2'"),
}


def reason_against(name: str) -> str | None:
    """Why an operator cannot be called so; None if it can."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        return "expected small letters, digits and single _, with a letter first"
    prose = r'//.*|# .*|"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"'  # comments and texts
    code = {part: re.sub(prose, " ", (ROOT / part).read_text()) for part in OPERATOR}
    taken = [(f"{part} uses it for something else", re.findall(r"\w+", text)) for part, text in code.items()]
    taken += [(reason, words.split()) for reason, words in re.findall(r"(.*):\n((?:.+\n)+)", TAKEN.read_text())]
    taken += [("Python has it as a keyword or a function", keyword.kwlist + dir(builtins))]
    taken += [("it is a module of Python's own", sys.stdlib_module_names), ("torch.ops has it already", dir(torch.ops))]
    if (spec := importlib.util.find_spec(name)) and spec.origin:
        taken += [(f"a package of that name is installed, in {Path(spec.origin).parent}", [name])]
    return next((reason for reason, words in reversed(taken) if name in words), None)


def rename(text: str, name: str) -> str:
    """The text with add2 called `name`: add2, ADD2 and Add2; but not __hadd2, which is an intrinsic of CUDA."""
    text = re.sub(r"(?<!__h)add2", name, text)
    return text.replace("ADD2", name.upper()).replace("Add2", name.title().replace("_", ""))


def texts(build: str) -> dict[str, str]:
    """The project's files, in which the operator is still called add2."""
    found = {part: (ROOT / part).read_text() for part in OPERATOR}
    # Without the fast lane, the rule for DTensors and the layer: few operators need them at first.
    unneeded = r"    if .*\n +from \. import sharding.*\n|import sys\n| \(add2/fast\.py.*?\)"
    found["add2/ops.py"] = re.sub(unneeded, "", found["add2/ops.py"])
    found["add2/function.py"] = found["add2/function.py"].partition("\n\n\ndef launch(")[0] + "\n"
    files, command = BUILDS[build]
    for part, where in (COMMON | files).items():
        found[where] = (TEMPLATE / part).read_text().replace("BUILD_COMMAND", command)
    return found


def create(name: str, folder: Path, build: str) -> None:
    """Write the project into a new folder, all of it or nothing. ValueError or OSError if that cannot be."""
    if reason := reason_against(name):
        raise ValueError(f"{name!r} cannot be the operator's name: {reason}")
    if (folder := Path(os.path.realpath(folder))).is_relative_to(ROOT):
        raise ValueError(f"{folder} is inside this project; name a folder outside, such as ../{name}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as unfinished:
        for target, text in texts(build).items():
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
    except (ValueError, OSError) as error:
        parser.error(f"{args.folder}: {error.strerror}" if isinstance(error, OSError) else str(error))
    print(f"{args.folder} has the operator {args.name}, which adds. Next:\n\n    cd {args.folder}")
    print(f"    {rename(BUILDS[args.build][1], args.name)}\n    python3 -m pytest\n    python3 benchmark.py")
    print("\nWhat to change then: README.md there, and docs/11_your_own.md here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
