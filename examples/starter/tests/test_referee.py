"""What torch, its compilers and users will ask of the operator, if the folder `referee` lies in this project."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / "referee").is_dir(), reason="the folder referee is not in this project")
@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
def test_referee(device):
    """A minute. A finding comes with its cure, and with a program that repeats it."""
    command = [sys.executable, "-m", "referee", "tests/spec.py", "--quick", "--device", device]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
