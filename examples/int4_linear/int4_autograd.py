"""The Python side of the operators: derivatives, autocast, and kernels for fake tensors."""

import torch
import torch.nn.functional as F
from common import operators
from torch import Tensor

STRIP = 16  # columns whose squares linear_before_norm() adds up
LIBRARY = torch.library.Library("int4_linear", "FRAGMENT")


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(packed, scale, zero)
        return below(x, packed, scale, zero, bias)

    @staticmethod
    def backward(ctx, dy: Tensor):
        dx = dy @ torch.ops.int4_linear.dequantize(*ctx.saved_tensors) if ctx.needs_input_grad[1] else None
        dbias = dy.reshape(-1, dy.shape[-1]).sum(0) if ctx.needs_input_grad[5] else None
        return None, dx, None, None, None, dbias


def _refuse_trained_scale(*arguments: Tensor | None) -> None:
    raise RuntimeError("int4_linear: scale requires a gradient, and a 4-bit weight has none: detach it")


def _refuse_gradient(*arguments) -> None:
    raise RuntimeError("int4_linear: a product before or after a norm has no gradient: use it under torch.no_grad()")


def _no_vmap(info, in_dims, *arguments) -> None:
    raise RuntimeError("int4_linear: a product before or after a norm has no vmap: give it a leading dimension")


def _gate(y: Tensor, gated: bool) -> Tensor:
    return F.silu(y[..., 0::2]) * y[..., 1::2] if gated else y


def by_torch(x, packed, scale, zero, bias, gated=False) -> Tensor:
    """The operator by torch's own functions."""
    y = F.linear(x, torch.ops.int4_linear.dequantize(packed, scale, zero), bias)
    return _gate(y.to(x.dtype), gated)  # autocast may have changed it


def _with_every_derivative(x, packed, scale, *others) -> Tensor:
    if operators.has_derivative(scale):
        _refuse_trained_scale()
    return by_torch(x, packed, scale, *others)


def _with_gradient(below, x, packed, scale, zero, bias, gated=False) -> Tensor:
    if scale.requires_grad:
        _refuse_trained_scale()
    return _gate(_Gradient.apply(below, x, packed, scale, zero, bias), gated)


def _autocast(
    keyset, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None, gated: bool = False
) -> Tensor:
    x, bias = (each if scale is None else operators.cast(each, scale.dtype) for each in (x, bias))
    below = keyset.remove(keyset.highestPriorityTypeId())
    return torch.ops.int4_linear.int4_linear.default.redispatch(below, x, packed, scale, zero, bias, gated)


def _size(packed: Tensor, *others: Tensor | None) -> tuple:
    """N and K of a weight, for the fake kernels; int4_linear.cpp checks all else."""
    operators.expect_one_device("int4_linear", packed, *others)
    operators.expect("int4_linear", packed.dim() == 5, f"packed has shape {[*packed.shape]}, expected 5 dimensions")
    return packed.shape[0] * 64, packed.shape[1] * 64


def _new_result(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None, gated=False) -> Tensor:
    n, k = _size(packed, x, scale, zero, bias)
    message = f"x has shape {[*x.shape]}, expected [..., {k}]"
    operators.expect("int4_linear", x.dim() > 0, message)
    operators.expect("int4_linear", x.shape[-1] == k, message)
    return x.new_empty(*x.shape[:-1], n // 2 if gated else n)


def register() -> None:
    """The operators' Python side: derivatives, autocast and fake kernels."""
    LIBRARY.impl("int4_linear", _autocast, "AutocastCPU", with_keyset=True)
    LIBRARY.impl("int4_linear", _autocast, "AutocastCUDA", with_keyset=True)
    ops = torch.ops.int4_linear
    operators.register_derivatives(ops.int4_linear.default, _with_every_derivative, _with_gradient)
    operators.register_derivatives(ops.dequantize.default, _refuse_trained_scale, _refuse_trained_scale)
    for op in (ops.linear_before_norm.default, ops.linear_after_norm.default):
        operators.register_derivatives(op, _refuse_gradient, _refuse_gradient)
        torch.library.register_vmap(op, _no_vmap)

    @torch.library.register_fake("int4_linear::int4_linear")
    def _(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None, gated: bool = False):
        return _new_result(x, packed, scale, zero, bias, gated)

    @torch.library.register_fake("int4_linear::linear_before_norm")
    def _(x, packed, scale, zero, bias, residual, norm_weight):
        operators.expect_one_device("int4_linear", x, residual, norm_weight)
        y = _new_result(x, packed, scale, zero, bias)
        squares = x.new_empty(*y.shape[:-1], y.shape[-1] // STRIP, dtype=torch.float32)
        return y, torch.empty_like(y), squares

    @torch.library.register_fake("int4_linear::linear_after_norm")
    def _(weighted, squares, eps, packed, scale, zero, bias, gated=False):
        operators.expect_one_device("int4_linear", weighted, squares)
        return _new_result(weighted, packed, scale, zero, bias, gated)

    @torch.library.register_fake("int4_linear::dequantize")
    def _(packed: Tensor, scale: Tensor, zero: Tensor):
        return scale.new_empty(_size(packed, scale, zero))
