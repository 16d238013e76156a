"""Each check in a process of its own, with a time limit: a crash or a hang is a result, and no state is left.

A fork takes milliseconds. CUDA does not survive it, and neither do autograd's threads: where this process has used
CUDA, or has started those threads, the check gets a new Python, which loads the file with the description again.
"""

import ctypes
import faulthandler
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

PACKAGE = __package__
ROOT = Path(__file__).resolve().parents[PACKAGE.count(".") + 1]  # the folder from which this package is imported
_survives: dict[frozenset[str], bool] = {}  # the threads of this process -> whether autograd survived a fork


@dataclass
class Ended:
    """How a process ended. problem: "" or what happened to it. events: what it has said. output: its last lines."""

    events: list[dict] = field(default_factory=list)
    problem: str = ""
    output: str = ""

    @property
    def died(self) -> bool:
        """Whether a signal ended it before its time was over."""
        return self.problem.startswith("the process died")


def may_fork(device: str) -> bool:
    """Whether a fork can use autograd and the device."""
    return autograd_survives_a_fork() and (not device.startswith("cuda") or cuda_survives_a_fork())


def cuda_survives_a_fork() -> bool:
    """cuDeviceGetCount() says 3, not initialized, until CUDA is used for the first time, also by
    torch.cuda.is_available()."""
    if torch.cuda.is_initialized():
        return False
    try:
        return ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 3
    except OSError:
        return False


def autograd_survives_a_fork() -> bool:
    """torch refuses each backward() in a fork of a process that has started autograd's threads for other devices. No
    function tells whether it has, so a fork tries, and again when this process has other threads than at any try."""
    threads = frozenset(os.listdir("/proc/self/task"))
    if threads not in _survives:
        _survives[threads] = not fork(lambda say: torch.ones(1, requires_grad=True).backward(), 60).problem
    return _survives[threads]


def sayer(pipe: int) -> Callable[[dict], None]:
    """A function that writes events to a pipe, as lines of JSON."""

    def say(event: dict) -> None:
        os.write(pipe, (json.dumps(event) + "\n").encode())

    return say


def fork(work: Callable[[Callable[[dict], None]], None], seconds: float) -> Ended:
    """Call work(say) in a fork. Each say(event) is noted."""
    reader, writer = os.pipe()
    may_use_cuda = cuda_survives_a_fork()
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _become_child(output, reader, may_use_cuda)
            try:
                work(sayer(writer))
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        os.close(writer)
        return _wait(child, reader, output, seconds)


def _become_child(output, reader: int, may_use_cuda: bool) -> None:
    os.setsid()  # with the processes that a compiler starts, it can be ended as a group
    os.close(reader)
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    faulthandler.enable(sys.stderr)
    gc.freeze()  # what is there already is not looked through again
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers, which would outlive this process
    if config := sys.modules.get("torch._inductor.config"):
        vars(config)["compile_threads"] = 1
    if not may_use_cuda:  # torch's compiler would ask for the state of CUDA's random numbers, even on a CPU
        torch.cuda.is_available = lambda: False
    if len(os.listdir(f"/proc/{os.getppid()}/task")) > 1:
        torch.set_num_threads(1)  # threads of OpenMP do not survive a fork; one thread needs none


def _environment() -> dict[str, str]:
    """That of a new Python, which then finds this package."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)}


def dies_alone(function: Callable[[str], None], device: str, seconds: float) -> bool:
    """Whether function(device) ends a new Python by a signal."""
    program = f"from {function.__module__} import {function.__name__} as work; work({device!r})"
    return _start(["-c", program], seconds).died


def start(arguments: list[str], seconds: float) -> Ended:
    """Run this package in a new Python process, which says its events into a pipe."""
    return _start(["-m", PACKAGE, *arguments], seconds)


def _start(arguments: list[str], seconds: float) -> Ended:
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *arguments, "--events", str(writer)],
            pass_fds=[writer],
            env=_environment(),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(writer)
        ended = _wait(process.pid, reader, output, seconds)
        process.returncode = 0  # waited for already
        return ended


def _wait(child: int, reader: int, output, seconds: float) -> Ended:
    ended, text, limit = Ended(), b"", time.monotonic() + seconds
    try:
        while (left := limit - time.monotonic()) > 0:
            if select.select([reader], [], [], left)[0]:
                piece = os.read(reader, 65536)
                if not piece:
                    break
                text += piece
        else:
            ended.problem = f"no answer after {seconds:.0f} s"
    finally:
        os.close(reader)
        if ended.problem or sys.exc_info()[0]:
            os.killpg(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended.events = [json.loads(line) for line in text.decode().splitlines() if line.endswith("}")]
    output.seek(0)
    ended.output = output.read().decode(errors="replace")[-4000:]
    if not ended.problem and status < 0:
        ended.problem = f"the process died: {signal.Signals(-status).name}"
    elif not ended.problem and status:
        ended.problem = f"the process ended with exit status {status}"
    return ended
