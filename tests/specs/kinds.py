"""The operators of page 6, the careless ones too: the referee has to find what the page says of them."""

import importlib.util
import sys
from pathlib import Path

import torch

from lab.referee import Operator

path = Path(__file__).parents[2] / "examples/kinds/kinds.py"
spec = importlib.util.spec_from_file_location("kinds_operators", path)
sys.modules[spec.name] = kinds = importlib.util.module_from_spec(spec)  # torch.compile looks there
spec.loader.exec_module(kinds)


def mirror(a):
    return a + a.flip(0)


def one(device):
    return (torch.randn(6, device=device),)


def written_and_read(device):
    return torch.zeros(6, device=device), torch.randn(6, device=device)


functional = Operator("kinds::mirror", inputs=one, reference=mirror)
writing = Operator("kinds::mirror_into", inputs=written_and_read, reference=lambda c, a: mirror(a))
checked = Operator("kinds::checked_into", inputs=written_and_read, reference=lambda c, a: mirror(a))
out = Operator(
    "kinds::mirror.out",
    call=lambda a, out: torch.ops.kinds.mirror.out(a, out=out),
    inputs=lambda device: written_and_read(device)[::-1],
    reference=lambda a, out: mirror(a),
)
in_place = Operator("kinds::mirror_", inputs=one, reference=mirror)
same = Operator("kinds::same", inputs=one, reference=lambda a: a.clone())
copied = Operator("kinds::copied", inputs=one, reference=lambda a: a.clone())
note = Operator("kinds::note", inputs=one)
note_in = Operator("kinds::note_in", inputs=lambda device: (torch.zeros(1, device=device), *one(device)))
