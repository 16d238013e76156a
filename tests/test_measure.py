"""docs/results/measure.py: its commands are those of the programs, and each file keeps the command that made it."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MEASURE = runpy.run_path(str(ROOT / "docs" / "results" / "measure.py"))
COMMANDS = [command for machine in ("GPU", "CPU") for part in MEASURE[machine].values() for command in part]


@pytest.mark.parametrize("program", ["time.py", "train.py"])
def test_options_exist(program, run):
    options = run(program, "--help").stdout
    mine = [command for command in COMMANDS if command.startswith(program)]
    assert mine
    for option in re.findall(r"--[\w-]+", " ".join(mine)):
        assert re.search(rf"{option}\b", options), option


def test_file_has_its_command(tmp_path):
    """And of a training run only the curves that are drawn."""
    found = MEASURE["run"]("train.py --device cpu --check --epochs 2", tmp_path, threads=1)
    assert found["environment"]["command"] == "python3 train.py --device cpu --check --epochs 2 --json FILE.json"
    assert [row.keys() for row in found["training"]] == [{"add", "median_us_per_step"}] * 2
    assert found["environment"]["threads"] == 1
