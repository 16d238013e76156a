"""Starts Python programs without the second or two of `import torch`: this process has done it, and forks for each.

It reads requests from stdin, a line of JSON each, and answers with the exit status. It has imported nothing of the
project and started no thread, so a fork is what a new process would be. conftest.py's `run` uses it.
"""

import gc
import json
import os
import runpy
import signal
import sys

import torch  # noqa: F401


def serve() -> dict:
    """Returns a request, in a child that is to run it. Ends when there are no more."""
    gc.freeze()  # a collection in a child would copy the pages of all objects
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


def become(request: dict) -> None:
    """Run Python's arguments: a script, -m or -c."""
    signal.alarm(request["seconds"])  # whose default ends the process
    for descriptor, path in enumerate((os.devnull, *request["outputs"])):
        opened = os.open(path, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    first, *sys.argv = request["arguments"]
    if first == "-c":
        sys.path[0], code = "", sys.argv[0]
        sys.argv[0] = "-c"
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    elif first == "-m":
        sys.path[0] = request["cwd"]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(first)
        sys.argv.insert(0, first)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    become(serve())
