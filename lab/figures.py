"""The tables and pictures of the pages, from measurements: docs/results/*.json.

    python3 -m lab.figures            # write them again
    python3 -m lab.figures --check    # print which pages would change; exit status 1 if any would

docs/results/tables.py makes them. A table stands in a page between `<!-- figures: NAME -->` and `<!-- end -->`."""

import argparse
import json
import re
import runpy
import sys

from . import cli, files
from .build.cache import ROOT

RESULTS = ROOT / "docs" / "results"
PAGES = [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").glob("*.md")), RESULTS / "README.md"]
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def load(name: str) -> dict | list[dict]:
    """A file of docs/results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.figures", description="Write the pages' tables and pictures.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a table would change")
    args = parser.parse_args()
    made = runpy.run_path(str(RESULTS / "tables.py"))
    stale = {}
    for page in PAGES:
        text = page.read_text()
        new = MARKED.sub(lambda match: f"{match[1]}\n{made['TABLES'][match[2]]()}\n{match[4]}", text)
        if new != text:
            stale[page] = new.encode()
    if args.check:
        for page in stale:
            cli.note(f"{page.relative_to(ROOT)} does not show what is in docs/results: run `python3 -m lab.figures`")
        return 1 if stale else 0
    for name, draw in made["PICTURES"].items():
        stale[RESULTS / name] = files.to_picture(draw(), RESULTS / name)
    for path, content in stale.items():
        files.write(path, content)
        print(str(path.relative_to(ROOT)))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main))
