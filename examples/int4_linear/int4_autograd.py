"""The Python side of the operators int4_linear and dequantize: derivatives, autocast, and kernels for fake tensors."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

LIBRARY = torch.library.Library("int4_linear", "FRAGMENT")


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(packed, scale, zero)
        return torch.ops.int4_linear.int4_linear.default.redispatch(below, x, packed, scale, zero, bias)

    @staticmethod
    def backward(ctx, dy: Tensor):
        dx = dy @ torch.ops.int4_linear.dequantize(*ctx.saved_tensors) if ctx.needs_input_grad[1] else None
        dbias = dy.reshape(-1, dy.shape[-1]).sum(0) if ctx.needs_input_grad[5] else None
        return None, dx, None, None, None, dbias


def _expect_tensors(**arguments: Tensor | None) -> None:
    for name, value in arguments.items():  # torch itself lets None pass for a tensor
        if value is None:
            raise RuntimeError(f"int4_linear: {name} is None, expected a tensor")


def _unpack(x: Tensor):
    """x and its tangent, or None. unpack_dual's default level is wrong while torch.compile traces."""
    return unpack_dual(x, level=0 if torch.compiler.is_compiling() else None)


def _below(keyset, packed: Tensor, scale: Tensor, zero: Tensor):
    """The dispatch keys below Autograd: on to the C++ function."""
    _expect_tensors(packed=packed, scale=scale, zero=zero)
    if (torch.is_grad_enabled() and scale.requires_grad) or _unpack(scale).tangent is not None:
        raise RuntimeError("int4_linear: scale requires a gradient, and a 4-bit weight has none: detach it")
    return keyset.remove(keyset.highestPriorityTypeId())


# torch.library.register_autograd is shorter, but forward derivatives through it are silently zero.
@torch.compiler.disable  # torch.compile calls this to trace through it, and must not compile it by itself
def _autograd(
    keyset, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None, gated: bool = False
) -> Tensor:
    _expect_tensors(x=x)
    below, tensors = _below(keyset, packed, scale, zero), (x,) if bias is None else (x, bias)
    if any(torch.func.debug_unwrap(each) is not each or _unpack(each).tangent is not None for each in tensors):
        checked = (x if x is None else _unpack(x).primal for x in (x, packed, scale, zero, bias))
        torch.ops.int4_linear.int4_linear.default.redispatch(below, *checked)
        # torch.func's grad, jvp, ..., or a forward derivative: slower, but torch has every derivative of this. Autocast
        # may change its dtype.
        y = F.linear(x, torch.ops.int4_linear.dequantize(packed, scale, zero), bias).to(x.dtype)
    elif torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        y = _Gradient.apply(below, x, packed, scale, zero, bias)
    else:
        return torch.ops.int4_linear.int4_linear.default.redispatch(below, x, packed, scale, zero, bias, gated)
    return F.silu(y[..., 0::2]) * y[..., 1::2] if gated else y


@torch.compiler.disable
def _dequantize_autograd(keyset, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return torch.ops.int4_linear.dequantize.default.redispatch(_below(keyset, packed, scale, zero), packed, scale, zero)


def _autocast(
    keyset, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None, gated: bool = False
) -> Tensor:
    _expect_tensors(x=x, scale=scale)
    x, bias = x.to(scale.dtype), None if bias is None else bias.to(scale.dtype)
    below = keyset.remove(keyset.highestPriorityTypeId())
    return torch.ops.int4_linear.int4_linear.default.redispatch(below, x, packed, scale, zero, bias, gated)


def _check(name: str, tensor: Tensor, dtype: torch.dtype, packed: Tensor, shape: tuple) -> None:
    """For fake tensors; int4_linear.cpp has the same for real ones."""
    torch._check(tensor.device == packed.device, lambda: f"int4_linear: {name} is on another device than packed")
    torch._check(tensor.dtype == dtype, lambda: f"int4_linear: {name} is {tensor.dtype}, expected {dtype}")
    found = tuple(tensor.shape)
    is_right = len(found) == len(shape) and all(a == b for a, b in zip(found, shape, strict=True))
    torch._check(is_right, lambda: f"int4_linear: {name} has shape {list(found)}, expected {list(shape)}")


def _check_weight(packed: Tensor, scale: Tensor, zero: Tensor) -> tuple:
    """Returns N and K."""
    _expect_tensors(packed=packed, scale=scale, zero=zero)
    blocks, chunks = (*packed.shape, 0, 0)[:2]
    groups = (chunks + 1) // 2
    _check("packed", packed, torch.int32, packed, (blocks, chunks, 4, 32, 4))
    n, k = blocks * 64, chunks * 64
    torch._check(n * k > 0, lambda: f"int4_linear: the weight is {[n, k]}, expected sizes above 0 and below 2^26")
    torch._check(scale.dtype in (torch.float16, torch.bfloat16), lambda: f"int4_linear: scale is {scale.dtype}")
    _check("scale", scale, scale.dtype, packed, (groups, n))
    _check("zero", zero, torch.uint8, packed, (groups, n))
    return n, k


def register() -> None:
    """The operators' Python side: derivatives, autocast and fake kernels."""
    LIBRARY.impl("int4_linear", _autocast, "AutocastCPU", with_keyset=True)
    LIBRARY.impl("int4_linear", _autocast, "AutocastCUDA", with_keyset=True)
    LIBRARY.impl("int4_linear", _autograd, "Autograd", with_keyset=True)
    LIBRARY.impl("dequantize", _dequantize_autograd, "Autograd", with_keyset=True)

    @torch.library.register_fake("int4_linear::int4_linear")
    def _(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None, gated: bool = False):
        n, k = _check_weight(packed, scale, zero)
        _expect_tensors(x=x)
        _check("x", x, scale.dtype, packed, (*x.shape[:-1], k))
        if bias is not None:
            _check("bias", bias, scale.dtype, packed, (n,))
        return x.new_empty(*x.shape[:-1], n // 2 if gated else n)

    @torch.library.register_fake("int4_linear::dequantize")
    def _(packed: Tensor, scale: Tensor, zero: Tensor):
        return scale.new_empty(_check_weight(packed, scale, zero))
