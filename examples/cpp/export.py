"""Compile a model that contains add2 into a package, model.pt2, which main.cpp runs without Python.

python3 examples/cpp/export.py examples/cpp/model.pt2
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this project; not needed where add2 is installed

from lab import build

build.load("jit")
import add2  # noqa: E402


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(add2.add2(a * a, b))


program = torch.export.export(Model(), (torch.randn(3, 1000), torch.randn(3, 1000)))
print("wrote", torch._inductor.aoti_compile_and_package(program, package_path=str(Path(sys.argv[1]).resolve())))
