"""The record of a run of time.py: one JSON file, from which tables and pictures can be made again."""

import argparse
import csv
import io
import json
from pathlib import Path

from .. import Failure, cli, files
from . import plots

KEY = ("compiler", "call", "dtype", "n", "clock")


def save(args: argparse.Namespace, content: dict) -> int:
    """Compare with an earlier run if one is given, and write the files that were asked for. Returns the exit status.

    A picture that has nothing to show is not written. A file that cannot be written does not keep back the others.
    """
    if args.against:
        content["against"] = compare(content["results"], args.against["results"])
    content = files.rounded(content)  # so that a picture can be drawn again from the file
    wanted = [
        (args.json, lambda: files.to_json(content)),
        (args.csv, lambda: to_csv(content)),
        (content["results"] and args.plot, lambda: plots.render(plots.sweep(content), args.plot)),
        (content["timeline"] and args.timeline, lambda: plots.render(plots.timeline(content), args.timeline)),
    ]
    status = 0
    for path, render in wanted:
        try:
            if path:
                files.write(path, render())
        except Failure as error:
            status = cli.fail(error)
    if args.against:
        cli.show(against_table(content["against"], args.against))
    return status


def to_csv(content: dict) -> bytes:
    """All tables in one: the first column says which, and a row leaves empty what its table does not have.

    In pandas: `all = pandas.read_csv(file); all[all.table == "results"].dropna(axis=1)`.
    """
    rows = [{"table": "environment", **content["environment"]}]
    rows += [{"table": "run", "correct": content["correct"], "complete": content["complete"]}]
    rows += [{"table": "warnings", "warning": warning} for warning in content["warnings"]]
    for table, value in content.items():
        if isinstance(value, list) and table != "warnings":
            rows += [{"table": table, **row} for row in value]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def earlier(text: str) -> dict:
    """The content of a file that `time.py --json` has written."""
    try:
        content = json.loads(Path(text).read_text())
        for row in content["results"]:
            numbers = [row["n"], row.get("offset", 0) + 1, *(row[name] for name in ("median_us", "low_us", "high_us"))]
            good = all(isinstance(row[name], str) for name in KEY if name != "n")
            if not good or not all(type(number) in (int, float) and 0 < number < 1e15 for number in numbers):
                raise ValueError(row)
        if not all(isinstance(content["environment"][name], str) for name in ("name", "torch")):
            raise ValueError(content["environment"])
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text} is not a file that `time.py --json FILE` has written") from error
    return content | {"file": text}


def compare(now: list[dict], then: list[dict]) -> list[dict]:
    """The figures that are in both runs. verdict: "faster" or "slower" if their 5th to 95th percentiles are apart."""

    def key(row: dict) -> tuple:
        return (*(row[name] for name in KEY), row.get("offset", 0))

    before = {key(row): row for row in then}
    rows = []
    for row in now:
        if old := before.get(key(row)):
            verdict = "slower" if row["low_us"] > old["high_us"] else "faster" if row["high_us"] < old["low_us"] else ""
            figures = {"then_us": old["median_us"], "now_us": row["median_us"]}
            figures |= {"ratio": row["median_us"] / old["median_us"], "verdict": verdict}
            rows.append({name: row[name] for name in KEY} | figures)
    return rows


def against_table(rows: list[dict], then: dict) -> str:
    where = then["environment"]
    text = [f"\nAgainst a run of {where.get('date', 'unknown date')} on {where['name']}, torch {where['torch']}"]
    text.append(f"{'call':<26}{'dtype':<10}{'n':>11} {'clock':<9}{'then us':>10}{'now us':>10}{'now/then':>10}")
    for row in rows:
        line = f"{row['call'] + ' (' + row['compiler'] + ')':<26}{row['dtype']:<10}{row['n']:>11} {row['clock']:<9}"
        text.append(f"{line}{row['then_us']:>10.2f}{row['now_us']:>10.2f}{row['ratio']:>10.3f} {row['verdict']}")
    apart = sum(bool(row["verdict"]) for row in rows)
    text.append(f"{len(rows)} figures are in both runs; {apart} differ by more than their 5th to 95th percentiles.")
    return "\n".join(text)
