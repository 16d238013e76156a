"""y = scale * relu(x)^2 in one kernel, and its gradient in another one.

This file loads the library and tells torch what it cannot see in C++ code: the shape of a result (fake kernel), what a
batch is (vmap), and the gradient.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .derivatives import is_tangent_hidden, register_derivatives

__version__ = "0.1.0"
__all__ = ["squared_relu"]

if not (_library := Path(__file__).with_name("_C.so")).exists():
    raise ImportError(f"{_library} is missing: run `python3 setup.py build_ext --inplace`")
torch.ops.load_library(_library)
_forward_op = torch.ops.squared_relu.squared_relu.default
_backward_op = torch.ops.squared_relu.squared_relu_backward.default


def squared_relu(x: Tensor, scale: float = 1.0) -> Tensor:
    """Return scale * relu(x)^2, a new contiguous tensor. Computes in float32 (float64 in float64), rounds once.

    x: any shape and strides; float32, float64, float16 or bfloat16; on a CPU or a CUDA device. Otherwise RuntimeError.
    scale: a number, otherwise TypeError. Differentiable by x any number of times. Asynchronous on CUDA.
    """
    if x is None:  # torch lets it pass for a tensor
        raise TypeError("squared_relu: x is None, expected a tensor")
    if isinstance(scale, Tensor):  # torch would convert it, and drop its gradient
        raise TypeError("squared_relu: scale is a tensor, expected a number: it gets no gradient")
    if is_tangent_hidden(x):
        _forward_op(x, scale)  # for its checks
        return _by_torch(x, scale)
    result: Tensor = _forward_op(x, scale)
    return result


# 1. The fake kernels: the shape, strides, dtype and device of a result, without computing it.


def _fake(x: Tensor, scale: float) -> Tensor:
    return x.new_empty(x.shape)


def _fake_backward(grad: Tensor, x: Tensor, scale: float) -> Tensor:
    torch._check(grad.device == x.device, lambda: f"squared_relu: grad is on {grad.device}, expected {x.device}")
    torch._check(grad.dtype == x.dtype, lambda: f"squared_relu: grad is {grad.dtype}, expected {x.dtype}")
    # One dimension at a time: torch.compile can then assume that sizes it does not know yet are equal.
    for m, n in [(grad.dim(), x.dim()), *zip(grad.shape, x.shape, strict=False)]:
        torch._check(m == n, lambda: f"squared_relu: grad has shape {[*grad.shape]}, expected {[*x.shape]}")
    return x.new_empty(x.shape)


torch.library.register_fake(_forward_op, _fake)
torch.library.register_fake(_backward_op, _fake_backward)


# 2. A batch is one more dimension. This holds for every operator that computes element by element.


def _vmap(op: Any, info: Any, dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    def batch_first(x: Any, dim: int | None) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)

    return op(*map(batch_first, arguments, dims)), 0


torch.library.register_vmap(_forward_op, partial(_vmap, _forward_op))
torch.library.register_vmap(_backward_op, partial(_vmap, _backward_op))


# 3. The gradient.


def _save(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    x, ctx.scale = inputs
    # Not the output: it is rounded. In float16 it is 0 for x = 1e-4, and its gradient is not.
    ctx.save_for_backward(x)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return _backward_op(grad, x, ctx.scale), None  # one for each argument: x, scale


def _by_torch(x: Tensor, scale: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # once, as in the kernel: only the result is rounded
    return (scale * torch.relu(wide).square()).to(x.dtype)


def _backward_by_torch(grad: Tensor, x: Tensor, scale: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    dx = (grad.to(wide.dtype) * scale) * (2 * wide)
    return dx.masked_fill(x <= 0, 0).to(x.dtype)


# One of two lines. The first one needs no derivatives.py, but with it torch.func.jvp gives zeros without an error, and
# torch.func.grad, vjp and hessian end in an error.
# torch.library.register_autograd(_forward_op, _backward, setup_context=_save)
register_derivatives(_forward_op, _by_torch, _backward, setup_context=_save)

# Second derivatives: either computed by torch's own functions, or refused.
register_derivatives(_backward_op, _backward_by_torch)
# refuse_derivatives(_backward_op, "squared_relu has no second derivative: its backward kernel has no gradient")
