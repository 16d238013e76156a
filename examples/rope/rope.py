"""Rotary position embedding of x [batch, heads, tokens, d], of any strides, by cos and sin [tokens, d / 2]; float32."""

from pathlib import Path

import torch
from torch.autograd.forward_ad import unpack_dual
from torch.utils.cpp_extension import CUDA_HOME, load

cuda = torch.cuda.is_available() and CUDA_HOME is not None
sources = [str(Path(__file__).with_name(name)) for name in ["rope.cpp"] + ["rope_kernel.cu"] * cuda]
where = {"extra_include_paths": [str(Path(__file__).resolve().parents[1])], "is_python_module": False}
load("rope", sources, extra_cflags=["-O3"] + ["-DUSE_CUDA"] * cuda, **where)
rotate = torch.ops.rope.rotate.default


def by_torch(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def fake(x, cos, sin):
    torch._check(x.device == cos.device == sin.device, lambda: "rotate: tensors on several devices")
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
        return rotate.redispatch(below, x, cos, sin)

    @staticmethod
    def backward(ctx, grad):  # rotates back, and reads grad where it lies
        cos, sin = ctx.saved_tensors
        return None, rotate(grad, cos, -sin), None, None


@torch.compiler.disable
def autograd(keys, x, cos, sin):
    level = 0 if torch.compiler.is_compiling() else None
    below = keys.remove(keys.highestPriorityTypeId())
    for t in (x, cos, sin):
        if torch.func.debug_unwrap(t) is not t or unpack_dual(t, level=level).tangent is not None:
            rotate.redispatch(below, x, cos, sin)  # refuses what it always refuses
            return by_torch(x, cos, sin)
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        raise RuntimeError("rotate: cos or sin requires a gradient, and has none: detach it")
    if torch.is_grad_enabled() and x.requires_grad:
        return Gradient.apply(below, x, cos, sin)
    return rotate.redispatch(below, x, cos, sin)


torch.library.register_fake("rope::rotate", fake)
torch.library.register_vmap("rope::rotate", vmap)
library = torch.library.Library("rope", "FRAGMENT")
library.impl("rotate", autograd, "Autograd", with_keyset=True)
