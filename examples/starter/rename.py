"""Give the operator, its package and its files another name: python3 rename.py NEW_NAME"""

import importlib.util
import re
import shutil
import subprocess
import sys
from keyword import iskeyword
from pathlib import Path

import torch

OLD = "scaled_relu"
ROOT = Path(__file__).resolve().parent
TEXTS = [p for d in (".", "csrc", "tests", f"src/{OLD}") for p in (ROOT / d).glob("*.*") if p.suffix != ".so"]

new = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
if ROOT.name == "starter":
    sys.exit("rename.py: this is the original; copy the folder first, and rename the copy")
if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", new) or iskeyword(new) or importlib.util.find_spec(new):
    sys.exit(f"rename.py: {new!r} is a package already, or no name for one (lower case letters, digits, single _)")
if used := [p.name for p in TEXTS if p.suffix in (".py", ".cpp", ".cu") and re.search(rf"\b{new}\b", p.read_text())]:
    sys.exit(f"rename.py: {used[0]} uses the word {new!r} already")
try:
    torch.library.Library(new, "DEF")  # as the renamed library does when it is loaded
except (RuntimeError, ValueError):
    sys.exit(f"rename.py: {new!r} is a namespace of torch's own operators")
renamed = (ROOT / "csrc" / f"{OLD}.cpp").read_text().replace(OLD, new)
check = ["c++", "-fsyntax-only", "-std=c++17", f"-I{Path(torch.__file__).parent}/include", "-xc++", "-"]
if found := re.search("error: .*", subprocess.run(check, input=renamed, capture_output=True, text=True).stderr):
    sys.exit(f"rename.py: {new!r} is no name for a C++ function: {found[0]}")

for path in TEXTS:
    text = re.sub(r"\n.*python3 rename.py .*\n", "", path.read_text()) if path.suffix == ".md" else path.read_text()
    path.write_text(text.replace(OLD, new))
    path.rename(path.with_name(path.name.replace(OLD, new)))
(ROOT / "src" / OLD).rename(ROOT / "src" / new)
shutil.rmtree(ROOT / "build", ignore_errors=True)  # built under the old name
