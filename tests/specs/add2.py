"""add2 and torch_launch_add2, by their public functions and by the operators below them."""

import importlib
import subprocess
import sys
from pathlib import Path

import torch

from lab.build import load
from lab.referee import Operator

if not hasattr(torch.ops.add2, "add2"):  # tests have loaded the build that they test
    # A build asks the GPU what to compile for. Done by another process, it leaves CUDA alone in this one, so that the
    # referee can fork it.
    program = "from lab.build import load; print(load('jit').library)"
    options = {"cwd": Path(__file__).parents[2], "stdout": subprocess.PIPE, "text": True, "check": True}
    load("jit", library=Path(subprocess.run([sys.executable, "-c", program], **options).stdout.strip()))
add2 = importlib.import_module("add2")

EXACT = dict.fromkeys((torch.float64, torch.float32, torch.float16, torch.bfloat16), 0.0)
sum_facts = {
    "inputs": lambda device: (torch.randn(3, 6, device=device), torch.randn(6, 3, device=device).t()),
    "reference": torch.add,
    "gradients": (0, 1),
    "sizes": {"rows": [(0, 0), (1, 0)], "columns": [(0, 1), (1, 1)]},
    "tolerance": EXACT,
    "wrong": {
        r"b has shape \[2, 6\], expected \[3, 6\]": {1: lambda b: b[1:]},
        r"b has shape \[18\], expected \[3, 6\]": {1: lambda b: b.flatten()},
        r"b has shape \[6\], expected \[3, 6\]": {1: lambda b: b[0]},
        "b is float64, expected float32": {1: lambda b: b.double()},
    },
}
function = Operator("add2::add2", call=add2.add2, title="add2.add2", **sum_facts)
operator = Operator("add2::add2", title="torch.ops.add2.add2", **sum_facts)


def add_all(c, a, b):
    add2.torch_launch_add2(c, a, b, a.numel())


def write_sum(c, a, b):
    n = a.numel()
    c.view(-1)[:n] = a.flatten() + b.flatten()[:n]


launch = Operator(
    "add2::torch_launch_add2",
    call=add_all,
    inputs=lambda device: (torch.zeros(6, 3, device=device), *(torch.randn(6, 3, device=device) for _ in "ab")),
    reference=write_sum,
    sizes={"rows": [(0, 0), (1, 0), (2, 0)]},
    tolerance=EXACT,
    wrong={
        "n is 18, expected 0 to 15, all of c": {0: lambda c: c[1:]},
        "b is float64, expected float32": {2: lambda b: b.double()},
        r"c of shape \[3, 6\] is not contiguous": {0: lambda c: c.t()},
    },
)
