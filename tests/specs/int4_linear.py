"""int4_linear() of page 16: x times a weight of 4-bit codes, which pack() has packed; and before and after a norm."""

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


def before_norm_inputs(device):
    x, *weight, bias = inputs(device)
    return x, *weight, bias, torch.randn(4, 192, device=device).bfloat16(), torch.rand(192, device=device).bfloat16()


def before_norm_by_torch(x, packed, scale, zero, bias, residual, norm_weight):
    s = residual + F.linear(x, lesson.dequantize(packed, scale, zero), bias)
    return s, s * norm_weight, s.float().square().unflatten(-1, (-1, 16)).sum(-1)


linear_before_norm = Operator(
    "int4_linear::linear_before_norm",
    call=lesson.linear_before_norm,
    reference=before_norm_by_torch,
    inputs=before_norm_inputs,
    sizes={"rows": [(0, 0), (5, 0)]},
    tolerance={torch.float32: 2**-6},  # squares of s, which holds two roundings to bfloat16
    wrong={
        r"residual is .*\[3, 192\], expected .*\[4, 192\]": {5: lambda residual: residual[:3]},
        r"norm_weight is .*\[191\], expected .*\[192\]": {6: lambda weight: weight[1:]},
    },
)


def after_norm_inputs(device):
    x, *weight, bias = inputs(device)
    return x, torch.rand(4, 16, device=device), *weight, bias


def after_norm_by_torch(weighted, squares, packed, scale, zero, bias):
    x = weighted.float() * (squares.sum(-1, keepdim=True) / 256 + 1e-5).rsqrt()
    return F.linear(x.to(weighted.dtype), lesson.dequantize(packed, scale, zero), bias)


linear_after_norm = Operator(
    "int4_linear::linear_after_norm",
    call=lambda weighted, squares, *weight: lesson.linear_after_norm(weighted, squares, 1e-5, *weight),
    reference=after_norm_by_torch,
    inputs=after_norm_inputs,
    sizes={"rows": [(0, 0), (1, 0)]},
    wrong={
        r"squares is .*\[4, 15\], expected .*\[4, 16\]": {1: lambda squares: squares[:, 1:]},
        "squares is Double": {1: lambda squares: squares.double()},
        "packed is Long": {2: lambda packed: packed.long()},
    },
)
