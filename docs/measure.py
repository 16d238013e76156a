"""Measure again what docs/results holds, on this machine: each file there names the command that made it.

    python3 docs/measure.py NAME                 # writes docs/results/NAME-float32.json, NAME-float64.json, ...
    python3 docs/measure.py NAME float64 ways    # only these two
    python3 docs/measure.py cpu                  # what was measured on a CPU
    python3 docs/figures.py                      # puts them into the pages

NAME: any for your GPU. Left out is what was made by hand, by several programs, or with files of your own.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT))

from lab import files  # noqa: E402

COMMAND = re.compile(r"python3 [\w/]+\.py( [\w^,/-]+)* --json FILE(\.json)?")


def find_commands(record: Path) -> list[str]:
    """The commands that made a file; none if they cannot be run as they stand."""
    content = json.loads(record.read_text())
    commands = [run["environment"]["command"] for run in (content if isinstance(content, list) else [content])]
    return commands if all(map(COMMAND.fullmatch, commands)) else []


def run(command: str) -> dict:
    """Run one program of the project, show what it prints, and return the content of its JSON file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "FILE.json")
        subprocess.run([sys.executable, *shlex.split(command)[1:-1], str(file)], cwd=ROOT, check=True)
        found = json.loads(file.read_text())
    found["environment"]["command"] = command
    for row in found.get("build", []):  # its name, not where it lay
        row["library"] = row["library"] and Path(row["library"]).name
    for row in found.get("training", []):  # its medians are shown, not its curves
        del row["us_per_step"], row["losses"], row["accuracies"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", help="its name in the names of the files, such as h200, or cpu")
    parser.add_argument("only", nargs="*", help="only these parts (default: all)")
    args = parser.parse_args()
    records = RESULTS.glob("cpu-*.json" if args.machine == "cpu" else "h200-*.json")
    parts = {record.stem.partition("-")[2]: record for record in sorted(records)}
    for part in args.only or parts:
        if found := [run(command) for command in find_commands(parts[part])]:
            content = found if len(found) > 1 else found[0]
            files.write(RESULTS / f"{args.machine}-{part}.json", files.to_json(content))


if __name__ == "__main__":
    main()
