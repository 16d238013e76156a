"""The state of the code that a program measures: its commit, and a checksum of each source file.

Programs write it into their JSON. docs/records.py compares it with today's files, and so finds measurements that are
older than the code that they time.
"""

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = (".cu", ".cuh", ".h")
HOST = (".cpp", ".py")  # on a GPU they change only the host's times, which are measured in these folders:
TIMED_ON_HOST = ("include", "kernel", "add2", "examples/ways", "examples/port", "examples/port_points")
COMMENTS = {
    ".py": re.compile(r'""".*?"""|(?<!\S)#[^\n]*', re.DOTALL),
    "C++": re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL),
}


def checksum(path: Path) -> str:
    """Of a file without its comments, docstrings and spaces: they change no figure."""
    text = COMMENTS[".py" if path.suffix == ".py" else "C++"].sub("", path.read_text("utf-8"))
    return hashlib.sha256("".join(text.split()).encode()).hexdigest()[:12]


def state(places: Iterable[str], program: str = "", root: Path = ROOT) -> dict[str, str]:
    """{path: checksum} of the code in these folders and files, and of what it includes of the project.

    program: the one that measures. It does not count itself, and ladder.cu counts only for ladder.py.
    """
    waiting: list[Path] = []
    for place in places:
        counts = KERNELS + HOST * place.startswith(TIMED_ON_HOST)
        inside = [root / place, *sorted((root / place).glob("*"))]
        waiting += [path for path in inside if path.is_file() and path.suffix in counts]
    found: dict[str, str] = {}
    while waiting:
        path = waiting.pop(0)
        name = path.relative_to(root).as_posix()
        is_unused = path.name == "ladder.cu" and not program.endswith("ladder.py")
        if name in found or name == program or is_unused:
            continue
        found[name] = checksum(path)
        for included in re.findall(r'^#include "([^"]+)"', path.read_text("utf-8"), re.MULTILINE):
            folders = (path.parent, root / "examples", root / "examples/common", root / "include")
            candidates = [folder / included for folder in folders]
            waiting += [each.resolve() for each in candidates if each.exists()][:1]
    return dict(sorted(found.items()))


def of_this_process(others: Iterable[str] = ()) -> dict:
    """The commit, if git knows it, and the state of the folders whose code this process runs: the examples from which
    it has imported modules, add2 if it is time.py or train.py or has imported it, and others."""
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = [Path(name).resolve() for name in names if name and name.startswith("/")]  # torch.ops has no path
    inside = [path.parent.relative_to(ROOT) for path in files if path.is_relative_to(ROOT)]
    folders = {f"{folder.parts[0]}/{folder.parts[1]}" for folder in inside if folder.parts[:1] == ("examples",)}
    folders.discard("examples/common")  # what a lesson includes of it is found there
    if {Path("add2"), Path(".")} & {*inside}:
        folders |= {"include", "kernel", "add2"}
    program = Path(sys.argv[0]).resolve()
    name = program.relative_to(ROOT).as_posix() if program.is_relative_to(ROOT) else ""
    sources = state(sorted({*folders, *others}), name)
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {"sources": sources}
    return {"commit": done.stdout.strip(), "sources": sources} if done.returncode == 0 else {"sources": sources}
