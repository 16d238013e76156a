"""`time.py --compiler all`: every build that can be made here. A time.py of its own measures each, as a process can
register an operator only once."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from .. import toolchain
from ..build import COMPILERS


def measure(has_gpu: bool) -> tuple[list[dict], int]:
    """The contents of their JSON files, and the largest exit status. A build that fails has no content."""
    contents, status = [], 0
    for compiler in COMPILERS:
        if compiler == "nvrtc" and (not has_gpu or toolchain.lack_for_nvrtc()):
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "times.json")
            # Of an option that stands twice the last one counts.
            command = [sys.executable, *sys.argv, "--compiler", compiler, "--json", str(file)]
            child = subprocess.Popen(command)
            try:
                child.wait()
            except KeyboardInterrupt:  # a terminal sends it to the child as well, which saves what it has
                child.wait()
            if file.exists():
                contents.append(json.loads(file.read_text()))
        status = max(status, abs(child.returncode))
        if status == 130:
            break
    return contents, status
