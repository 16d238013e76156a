"""Rotary position embedding of x [batch, heads, tokens, d], of any strides, by cos and sin [tokens, d / 2]; float32."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import operators

HERE = Path(__file__).resolve().parent
operators.load("rope", [HERE / "rope.cpp", HERE / "rope_kernel.cu"], operators.target_flags(oldest=75))
op = torch.ops.rope.rotate.default


def rotate(x, cos, sin):
    if operators.is_tangent_hidden(x, cos, sin):
        op(x, cos, sin)  # for its checks
        return by_torch(x, cos, sin)
    return op(x, cos, sin)


def by_torch(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def fake(x, cos, sin):
    operators.expect_one_device("rotate", x, cos, sin)
    return x.new_empty(x.shape)  # contiguous: empty_like would promise x's strides


def vmap(info, dims, x, cos, sin):
    if dims[1] is not None or dims[2] is not None:
        raise NotImplementedError("rotate: under vmap, cos and sin must be the same for all")
    x = x.movedim(dims[0], 0)  # the operator has four dimensions, not five: the members join the batch
    return rotate(x.flatten(0, 1), cos, sin).unflatten(0, x.shape[:2]), 0


class Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return below(x, cos, sin)

    @staticmethod
    def backward(ctx, grad):  # rotates back, and reads grad where it lies
        cos, sin = ctx.saved_tensors
        return None, rotate(grad, cos, -sin), None, None


def with_gradient(below, x, cos, sin):
    if cos.requires_grad or sin.requires_grad:
        raise RuntimeError("rotate: cos or sin requires a gradient, and has none: detach it")
    return Gradient.apply(below, x, cos, sin)


torch.library.register_fake("rope::rotate", fake)
torch.library.register_vmap("rope::rotate", vmap)
operators.register_derivatives(op, by_torch, with_gradient)
