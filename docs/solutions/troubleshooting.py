"""Solutions of docs/troubleshooting.md."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from workshop import copy_of_project, environment, main, run, show

TORCHS_OWN = """
import os, sys, torch
from torch.utils import cpp_extension
cpp_extension.load("busy", [sys.argv[1]], build_directory=os.path.dirname(sys.argv[1]), is_python_module=False)
"""


def exercise_1():
    """lab/toolchain.py complains, before anything is compiled."""
    said = run("time.py", "--rebuild", status=1, CXX="no-such-compiler")
    show(said)
    assert "no-such-compiler is not installed" in said


def killed(command: list[str], folder: Path, begun: str) -> None:
    """Start it, and kill it with all its children as soon as the folder has a file `begun` (a pattern)."""
    options = {"cwd": folder, "env": environment(folder), "start_new_session": True}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *command], **options, **quiet)
    while not list(folder.glob(begun)):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    print("   killed while it compiled:", *command[:1])


def exercise_2():
    """A killed build: here the next one does not wait; load() called directly may wait for the file `lock`."""
    with copy_of_project() as copy:
        killed(["time.py", "--rebuild"], copy, "jit cache/add2/build.ninja")
        start = time.monotonic()
        run("time.py", "--sizes", "100", "--device", "cpu", folder=copy)
        print(f"   built and timed after {time.monotonic() - start:.0f} s")

        source = copy / "slow" / "busy.cpp"
        source.parent.mkdir()
        source.write_text("#include <torch/library.h>\n")
        (copy / "load.py").write_text(TORCHS_OWN)
        killed(["load.py", str(source)], copy, "slow/lock")
        try:
            command = [sys.executable, "load.py", str(source)]
            subprocess.run(command, cwd=copy, timeout=25, capture_output=True, check=True)
            waits = False
        except subprocess.TimeoutExpired:
            waits = True
    print(f"   torch {torch.__version__}: load() {'still waits after 25 s' if waits else 'has built it'}")


def exercise_3():
    """A new line on docs/troubleshooting.md: the doctor knows it."""
    with copy_of_project() as copy:
        ask = ("sh", "-c", f"echo 'error: is a teapot' | {sys.executable} -m lab.doctor --explain")
        show(run(*ask, folder=copy, status=1), "No symptom")
        page = copy / "docs" / "troubleshooting.md"
        page.write_text(page.read_text() + "\n- `is a teapot`: it is not made for coffee. *Cure:* tea. (no test)\n")
        said = run(*ask, folder=copy)
    show(said)
    assert said == "Cause: it is not made for coffee.\nCure: tea.\n"


if __name__ == "__main__":
    sys.exit(main())
