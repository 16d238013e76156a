"""The tables and the pictures of the pages, from the measurements in docs/results (*.json).

    python3 docs/figures.py            # write them again
    python3 docs/figures.py --check    # write nothing; exit status 1 if a page would change

A table stands in a page between `<!-- figures: NAME -->` and `<!-- end -->`; NAME is in docs/tables.py. If the code has
changed since a table was measured, a line below it says so; README shows no such table. --check also names all records
that are older than their code (docs/records.py).
"""

import argparse
import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import records  # noqa: E402
import tables  # noqa: E402

from lab.bench import plots  # noqa: E402

PAGES = [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").glob("*.md")), RESULTS / "README.md"]
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
PICTURES = {"h200-add-rms-norm": "add_rms_norm/bench.py", "h200-int4": "int4_linear/bench.py"}
PICTURES |= {"h200-llama": "llama/compare.py"}
KERNELS_CHANGED = "*The kernels have changed since this was measured.*\n\n"
HOST_CHANGED = "*The code has changed since this was measured.*\n\n"


def table(name: str) -> tuple[str, str]:
    """A table, and the line that must stand below it if it is older than its code."""
    records.used.clear()
    text = tables.TABLES[name]()
    if any(records.changed_files(record, is_host=False) for record, _ in records.used):
        return text, KERNELS_CHANGED
    if any(records.changed_files(record, is_host) for record, is_host in records.used):
        return text, HOST_CHANGED
    return text, ""


def renewed(page: Path, is_age_shown: bool = True) -> str:
    """The text of a page with today's tables. README has none that is older than its code.

    is_age_shown: False leaves the lines on age as they stand, and README's older tables, too.
    """
    is_readme = page.parent == ROOT

    def replace(found: re.Match) -> str:
        text, age = table(found[2])
        if age and is_readme:
            return f"{found[1]}\n{found[4]}" if is_age_shown else found[0]
        shown = [line for line in (KERNELS_CHANGED, HOST_CHANGED) if line in found[3]]
        below = age if is_age_shown else "".join(shown)
        return f"{found[1]}\n{text}\n{below}{found[4]}"

    return MARKED.sub(replace, page.read_text("utf-8"))


def draw(folder: Path) -> None:
    """The pictures: of docs/8_timing.md by the function of time.py, others by plot() of a lesson's program."""
    sweep = {"environment": records.environment(tables.RUNS[0]), "results": list(tables.timings().values())}
    plots.draw(folder / "h200-sweep.svg", plots.sweep, sweep)
    for name, program in PICTURES.items():
        sys.path.insert(0, str(ROOT / "examples" / program.partition("/")[0]))
        plot = runpy.run_path(str(ROOT / "examples" / program))["plot"]
        plots.draw(folder / f"{name}.svg", plot, records.read(name))


def check() -> int:
    """Name the pages that would change, and the records that are older than their code."""
    status = 0
    for page in PAGES:
        name, text = page.relative_to(ROOT), page.read_text("utf-8")
        if renewed(page, is_age_shown=False) != text:
            print(f"{name}: the figures are not those of docs/results")
        elif renewed(page) != text:
            print(f"{name}: does not say truly which figures are older than their code")
        else:
            continue
        status = 1
    for line in records.older():
        print(line)
    if status:
        print("Write the pages again: python3 docs/figures.py")
    return status


def main() -> int:
    keep = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page would change")
    if parser.parse_args().check:
        return check()
    for page in PAGES:
        if (text := renewed(page)) != page.read_text("utf-8"):
            print(page.relative_to(ROOT))
            page.write_text(text, "utf-8")
    draw(RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
