"""All that a run of time.py found, and the files that it goes to: --json, --csv, --plot, --timeline.

--against compares two such records.
"""

import argparse
import csv
import dataclasses
import io
import json
from dataclasses import dataclass, field
from pathlib import Path

from . import picture, report
from .build import Build
from .host_cost import HostCost
from .measure import Result
from .sync_study import Study


@dataclass
class Record:
    """One JSON file. Each list is a table that was printed, each row a dict or a dataclass of plain values."""

    environment: dict[str, str | int | float]
    build: list[dict] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    host_cost: list[HostCost] = field(default_factory=list)
    sync_study: list[Study] = field(default_factory=list)
    timeline: list[dict] = field(default_factory=list)  # see lab/timeline.py
    compare: list[dict] = field(default_factory=list)  # of --compiler all
    against: list[dict] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # why the figures may be doubted
    correct: bool = True  # every result was torch's
    complete: bool = True  # nobody interrupted it

    def finish(self, args: argparse.Namespace) -> None:
        """Compare with an earlier run if one was given, tell the warnings, write the files."""
        if args.against:
            self.against = differences(self.results, args.against["results"])
            print(differences_table(self.against, args.against))
        for warning in self.warnings:
            report.note(f"warning: {warning}")
        self.save(args)

    def save(self, args: argparse.Namespace) -> None:
        """Write the files that were asked for; those whose content was not measured are left as they were."""
        content = dataclasses.asdict(self)
        if args.json:
            write(args.json, (json.dumps(content, indent=1) + "\n").encode())
        if args.csv:
            write(args.csv, to_csv(content).encode())
        if args.plot and self.results:
            write(args.plot, picture.render(picture.sweep(content), args.plot))
        if args.timeline and self.timeline:
            write(args.timeline, picture.render(picture.timeline(content), args.timeline))


def build_row(build: Build) -> dict:
    row = {name: getattr(build, name) for name in ("compiler", "binding", "library", "seconds", "cached")}
    return row | {"library": str(build.library)}


def write(path: Path, content: bytes) -> None:
    """In one piece: a reader of the file never sees half of it. A link or /dev/stdout stays what it is."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(content)
        return
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def to_csv(content: dict) -> str:
    """All tables in one: the first column says which, and a row leaves empty what its table does not have.

    In pandas: `all = pandas.read_csv(file); all[all.table == "results"].dropna(axis=1)`.
    """
    rows = [{"table": "environment", **content["environment"]}]
    rows += [{"table": "run", "correct": content["correct"], "complete": content["complete"]}]
    rows += [{"table": "warnings", "warning": warning} for warning in content["warnings"]]
    for table, value in content.items():
        if isinstance(value, list) and table != "warnings":
            rows += [{"table": table, **row} for row in value]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def differences(now: list[Result], then: list[dict]) -> list[dict]:
    """The figures that both runs have. verdict: "faster" or "slower" where their 5th to 95th percentiles are apart."""
    key = ("compiler", "call", "dtype", "n", "clock")
    earlier = {(*(row[name] for name in key), row.get("offset", 0)): row for row in then}
    rows = []
    for result in now:
        old = earlier.get((*(getattr(result, name) for name in key), result.offset))
        if old is None:
            continue
        verdict = "slower" if result.low_us > old["high_us"] else "faster" if result.high_us < old["low_us"] else ""
        row = {name: getattr(result, name) for name in key}
        row |= {"then_us": old["median_us"], "now_us": result.median_us, "ratio": result.median_us / old["median_us"]}
        rows.append(row | {"verdict": verdict})
    return rows


def differences_table(rows: list[dict], then: dict) -> str:
    where = then["environment"]
    text = [f"\nAgainst a run of {where.get('date', 'unknown date')} on {where['name']}, torch {where['torch']}"]
    text.append(f"{'call':<26}{'dtype':<10}{'n':>11} {'clock':<9}{'then us':>10}{'now us':>10}{'now/then':>10}")
    for row in rows:
        line = f"{row['call'] + ' (' + row['compiler'] + ')':<26}{row['dtype']:<10}{row['n']:>11} {row['clock']:<9}"
        text.append(f"{line}{row['then_us']:>10.2f}{row['now_us']:>10.2f}{row['ratio']:>10.3f} {row['verdict']}")
    beyond = sum(bool(row["verdict"]) for row in rows)
    text.append(
        f"{len(rows)} figures are in both runs; {beyond} differ by more than their spread (5th to 95th percentile)."
    )
    return "\n".join(text)
