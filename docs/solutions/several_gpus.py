"""Solutions of docs/several-gpus.md."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from workshop import ROOT, environment, main, run, show


def exercise_1():
    """The mean of two means is not the mean, where the parts differ in size."""
    losses = torch.arange(63.0, requires_grad=True)
    parts = losses.split([31, 32])
    for name, loss in (
        ("mean of the parts' means", (parts[0].mean() + parts[1].mean()) / 2),
        ("mean", losses.mean()),
        ("as lab/train/loop.py", sum(part.sum() / 63 * 2 for part in parts) / 2),
    ):
        weights = torch.autograd.grad(loss, losses, retain_graph=True)[0]
        print(f"   {name:25} first image 1/{1 / weights[0]:.1f}, last image 1/{1 / weights[-1]:.1f}")
        assert torch.allclose(weights[0], weights[-1]) == (name != "mean of the parts' means")


def exercise_2():
    """One of two processes is killed: the next collective of the other one fails, and torchrun ends the run."""
    run("time.py", "--device", "cpu", "--sizes", "100")  # built before, so that both train at once
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "train.py", "--device", "cpu", "--epochs", "100000"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env=environment(ROOT), **streams)
    said = ""
    while "epoch  50" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    os.kill(int(children.split()[-1]), signal.SIGKILL)
    start = time.monotonic()
    said += process.communicate(timeout=300)[0]
    show(said, "Connection", "Signal 9")
    print(f"   it ended after {time.monotonic() - start:.0f} s with exit status {process.returncode}")
    assert process.returncode != 0


main()
