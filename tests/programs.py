"""Runs Python programs, each in a fork of this process, which has imported torch: that takes seconds.

A line of stdin is a job, in JSON: the arguments of python3, a folder, the environment, files for stdout and stderr.
The answer is a line with the exit status. Nothing here calls CUDA, which does not survive a fork.
"""

import gc
import json
import os
import runpy
import signal
import sys
import types
from pathlib import Path

import torch  # noqa: F401


def become(arguments, folder, environment, *outputs):
    """Prepare this process to be `python3 ARGUMENTS`."""
    for number, name in enumerate((os.devnull, *outputs)):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    is_file = arguments[0] not in ("-c", "-m")
    sys.argv = arguments if is_file or arguments[0] == "-c" else arguments[1:]
    first = str(Path(arguments[0]).resolve().parent) if is_file else folder
    sys.path[:1] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    signal.alarm(600)


def execute(first, *arguments):
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-m":
        return runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    if first == "-c":
        return exec(sys.argv.pop(1), vars(main))
    main.__file__ = first
    exec(compile(Path(first).read_text(), first, "exec"), vars(main))


gc.freeze()  # forks then do not look through all that torch has made when they collect garbage
for line in sys.stdin:
    job = json.loads(line)
    if (child := os.fork()) == 0:
        become(*job)
        execute(*job[0])
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
