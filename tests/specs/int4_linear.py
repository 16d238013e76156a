"""int4_linear() of page 16: x times a weight of 4-bit codes, which pack() has packed."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from lab.referee import Operator

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/int4_linear"))
import int4_linear as lesson

lesson.build()


def inputs(device):
    half = {"device": device, "dtype": torch.bfloat16}
    return torch.randn(4, 256, **half), *lesson.quantize(torch.randn(192, 256, **half)), torch.randn(192, **half)


int4_linear = Operator(
    "int4_linear::int4_linear",
    call=lambda x, packed, scale, zero, bias: lesson.int4_linear(x, packed, scale, zero, bias),
    reference=lambda x, packed, scale, zero, bias: F.linear(x, lesson.dequantize(packed, scale, zero), bias),
    inputs=inputs,
    gradients=(0, 4),
    sizes={"rows": [(0, 0)]},
    wrong={
        "x is Half": {0: lambda x: x.half()},
        r"x (is|has).*128": {0: lambda x: x[:, :128]},
        "packed is Long": {1: lambda packed: packed.long()},
        r"scale (is|has) .*\[1, 192\]": {2: lambda scale: scale[:1]},
        "zero is Int": {3: lambda zero: zero.int()},
        r"bias (is|has).*\[3\]": {4: lambda bias: bias[:3]},
    },
)
