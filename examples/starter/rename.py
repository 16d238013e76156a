"""Give the operator, its package and its files another name: python3 rename.py NEW_NAME"""

import importlib.util
import re
import shutil
import sys
from keyword import iskeyword
from pathlib import Path

OLD = "scaled_relu"
ROOT = Path(__file__).resolve().parent
TEXTS = [p for d in (".", "csrc", "tests", OLD) for p in (ROOT / d).glob("*.*") if p.suffix not in (".so", ".whl")]

new = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
if ROOT.name == "starter":
    sys.exit("rename.py: this is the original; copy the folder first, and rename the copy")
if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", new) or iskeyword(new) or importlib.util.find_spec(new):
    sys.exit(f"rename.py: {new!r} is a package already, or no name for one (lower case letters, digits, single _)")
code = [path for path in TEXTS if path.suffix in (".py", ".cpp", ".cu")]
if used := [path.name for path in code if re.search(rf"\b{new}\b", path.read_text())]:
    sys.exit(f"rename.py: {used[0]} uses the word {new!r} already")
for path in TEXTS:
    path.write_text(path.read_text().replace(OLD, new))
    path.rename(path.with_name(path.name.replace(OLD, new)))
(ROOT / OLD).rename(ROOT / new)
shutil.rmtree(ROOT / "build", ignore_errors=True)  # built under the old name
