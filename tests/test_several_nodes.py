"""train.py on two machines, as docs/several-gpus.md starts it: here two agents of torchrun on one machine."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.thorough
def test_two_nodes(run, tmp_path):
    """Three processes, two here and one there, have the losses of one process except for rounding."""
    options = ["--device", "cpu", "--epochs", "50", "--json"]
    run("train.py", *options, tmp_path / "single.json")  # also builds, so that the three start at once
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--master-addr", "127.0.0.1"]
    agents = []
    for node, processes in enumerate(("2", "1")):
        place = ["--node-rank", str(node), "--master-port", port, "--nproc-per-node", processes]
        command = [*torchrun, *place, "train.py", *options, str(tmp_path / "nodes.json")]
        agents.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [agent.communicate(timeout=300) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sum(out.count("epoch   0: loss") for out, _ in said) == 1
    single, nodes = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("single", "nodes"))
    assert (single["processes"], nodes["processes"]) == (1, 3)
    assert nodes["training"][0]["losses"] == pytest.approx(single["training"][0]["losses"], rel=2e-3)
