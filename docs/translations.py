"""Chinese pages that are behind their English ones.

    python3 docs/translations.py                                  # name them; exit status 1 if there are any
    python3 docs/translations.py --done docs/1_minimal.zh-CN.md   # this page now says what the English one says

The last line of a Chinese page is a checksum of the English text that it translates. Line breaks do not count, and
neither do the tables that docs/figures.py writes, in both languages. The Chinese glossary has none: it is a selection.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.zh-CN.md"), *sorted(ROOT.glob("docs/[0-9]*.zh-CN.md"))]
PAGES += sorted(ROOT.glob("examples/practice/*/task.zh-CN.md"))
TABLE = re.compile(r"(<!-- figures: [\w-]+ -->).*?<!-- end -->", re.DOTALL)
RECORD = re.compile(r"\n*<!-- translates \S+, text (\w+) -->\n*$")


def english(page: Path) -> Path:
    return page.with_name(page.name.replace(".zh-CN", ""))


def checksum(page: Path) -> str:
    """Of the words of a page."""
    words = TABLE.sub(r"\1", page.read_text("utf-8")).split()
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def is_behind(page: Path) -> bool:
    record = RECORD.search(page.read_text("utf-8"))
    return not record or record[1] != checksum(english(page))


def record(page: Path) -> None:
    source = english(page)
    text = RECORD.sub("", page.read_text("utf-8")).rstrip("\n")
    page.write_text(f"{text}\n\n<!-- translates {source.name}, text {checksum(source)} -->\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--done", nargs="+", default=[], metavar="PAGE", help="Chinese pages that are up to date now")
    for given in parser.parse_args().done:
        page = Path(given).resolve()
        if page not in PAGES:
            names = ", ".join(str(each.relative_to(ROOT)) for each in PAGES)
            parser.error(f"{given} is not one of {names}")
        record(page)
    behind = [page for page in PAGES if is_behind(page)]
    for page in behind:
        name, source = page.relative_to(ROOT), english(page).relative_to(ROOT)
        print(f"{name} is behind {source}. Look at what changed there (git log -p {source}), translate it, then run:")
        print(f"    python3 docs/translations.py --done {name}")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
