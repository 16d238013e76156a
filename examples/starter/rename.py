"""Give the operator, its package and its files another name: python3 rename.py NEW_NAME"""

import importlib.util
import re
import shutil
import sys
from keyword import iskeyword
from pathlib import Path

import torch

OLD = "squared_relu"
ROOT = Path(__file__).resolve().parent
FOLDERS = (".", ".github/workflows", "csrc", f"src/{OLD}", "tests")
FILES = [p for folder in FOLDERS for p in sorted((ROOT / folder).iterdir()) if p.is_file()]
FILES = [p for p in FILES if b"\0" not in p.read_bytes()]  # no library, and no wheel


def refuse(why: str) -> None:
    sys.exit(f"rename.py: {why}")


def check(new: str) -> None:
    """Refuse a name that would not work, before anything is changed."""
    if ROOT.name == "starter":
        refuse("this is the original; copy the folder first, and rename the copy")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", new) or iskeyword(new):
        refuse(f"{new!r} is no name for a package (lower case letters, digits, single _)")
    if importlib.util.find_spec(new):
        refuse(f"{new!r} is a package already")
    for path in FILES:
        if path.suffix in (".py", ".h", ".cpp", ".cu") and re.search(rf"\b{new}\b", path.read_text()):
            refuse(f"{path.name} uses the word {new!r} already")
    try:
        torch.library.Library(new, "DEF")  # as the renamed library does when it is loaded
    except (RuntimeError, ValueError):
        refuse(f"{new!r} is a namespace of torch's own operators")


def rename(new: str) -> None:
    print(f"{OLD} is now {new}:")
    for path in FILES:
        text = path.read_bytes()
        if path.name == "README.md":  # the copy is made, and renamed
            text = re.sub(rb"\n.*python3 rename.py .*\n", b"", text)
        count = text.count(OLD.encode())
        path.write_bytes(text.replace(OLD.encode(), new.encode()))
        target = path.rename(path.with_name(path.name.replace(OLD, new)))
        if count or target != path:
            print(f"  {count:3} times in {target.relative_to(ROOT)}".replace(OLD, new))
    (ROOT / "src" / OLD).rename(ROOT / "src" / new)
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # built under the old name
    for library in (ROOT / "src" / new).glob("*.so"):
        library.unlink()
    print("Yours to write: the holder in LICENSE, `description` in pyproject.toml, the first lines of README.md.")
    print("Lines have other lengths now. CI checks the format: ruff format . && clang-format -i csrc/*")


if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
check(sys.argv[1])
rename(sys.argv[1])
