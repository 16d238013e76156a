"""Solutions of docs/troubleshooting.md."""

import os
import signal
import subprocess
import sys
import time

from workshop import copy_of_project, environment, main, run, show


def exercise_1():
    """lab/toolchain.py complains, before anything is compiled."""
    said = run("time.py", "--rebuild", status=1, CXX="no-such-compiler")
    show(said)
    assert "no-such-compiler is not installed" in said


def exercise_2():
    """A killed build: the next one does not wait, because the operating system has released the lock."""
    with copy_of_project() as copy:
        command = [sys.executable, "time.py", "--rebuild"]
        options = {"cwd": copy, "env": environment(copy), "start_new_session": True}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
        while not (copy / "jit cache" / "add2" / "build.ninja").exists():
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print("   killed while it compiled")
        start = time.monotonic()
        run("time.py", "--sizes", "100", "--device", "cpu", folder=copy)
        print(f"   built and timed after {time.monotonic() - start:.0f} s")


main()
