"""y = relu(scale * (a + b)) in one kernel. This file loads the library, and tells torch what it cannot see in C++ code:
the shape of the result (fake kernel) and the gradient."""

from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

if not (_library := Path(__file__).with_name("_C.so")).exists():
    raise ImportError(f"{_library} is missing: run `python3 setup.py build_ext --inplace`")
torch.ops.load_library(_library)
_op = torch.ops.scaled_relu.scaled_relu.default
_HIDES_TANGENTS = torch.__version__ < "2.13"  # torch 2.10 and 2.11, while they compile, hide them from _autograd below


def scaled_relu(a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """Return relu(scale * (a + b)), a new contiguous tensor. Computes in float32 (float64 in float64), rounds once.

    a, b: one shape (any strides), one dtype (float32, float64, float16, bfloat16), one device (CPU or CUDA); otherwise
    RuntimeError. scale: a number. Differentiable any number of times by a and b. Asynchronous on CUDA.
    """
    if isinstance(scale, Tensor):
        raise TypeError("scaled_relu: scale is a tensor, expected a number: it gets no gradient")
    if _HIDES_TANGENTS and torch.compiler.is_compiling() and any(unpack_dual(x).tangent is not None for x in (a, b)):
        _op(a, b, scale)  # for its checks
        return _by_torch(a, b, scale)
    return _op(a, b, scale)


def _by_torch(a: Tensor, b: Tensor, scale: float) -> Tensor:
    wide = torch.promote_types(a.dtype, torch.float32)  # the kernel's `Wide`, for the same bits
    return torch.relu(scale * (a.to(wide) + b.to(wide))).to(a.dtype)  # slower, but has every derivative


@torch.library.register_fake("scaled_relu::scaled_relu")
def _(a: Tensor, b: Tensor, scale: float) -> Tensor:
    torch._check(a.device == b.device, lambda: f"scaled_relu: b is on {b.device}, expected {a.device}")
    torch._check(a.dtype == b.dtype, lambda: f"scaled_relu: b is {b.dtype}, expected {a.dtype}")
    # One dimension at a time: torch.compile can then assume that sizes it does not know yet are equal.
    for m, n in [(a.dim(), b.dim()), *zip(a.shape, b.shape, strict=False)]:
        torch._check(m == n, lambda: f"scaled_relu: b has shape {[*b.shape]}, expected {[*a.shape]}")
    return torch.empty_like(a, memory_format=torch.contiguous_format)


@torch.library.register_vmap("scaled_relu::scaled_relu")
def _(info, dims, a: Tensor, b: Tensor, scale: float):
    n, pairs = info.batch_size, zip((a, b), dims[:2], strict=True)
    sized = [x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs]
    return _op(*sized, scale), 0  # the batch is one more dimension


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below, a: Tensor, b: Tensor, scale: float) -> Tensor:
        y = _op.redispatch(below, a, b, scale)
        ctx.save_for_backward(y)  # its sign says where the gradient passes: one tensor instead of two
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        (y,) = ctx.saved_tensors
        grad = (grad * ctx.scale).masked_fill(y <= 0, 0)  # by torch's own operators, so it has a derivative, too
        return None, grad, grad, None


# torch.library.register_autograd is shorter, but forward derivatives through it are silently zero.
@torch.compiler.disable  # torch.compile runs this to trace the operator, and must not compile it by itself as well
def _autograd(keyset, a: Tensor, b: Tensor, scale: float) -> Tensor:
    level = 0 if torch.compiler.is_compiling() else None  # the default is wrong while torch.compile traces
    below = keyset.remove(keyset.highestPriorityTypeId())  # without Autograd: on to the C++ function
    tensors = [x for x in (a, b) if x is not None]  # None: the C++ function says so
    for x in tensors:  # inside torch.func (grad, jvp, ...), or with a forward derivative?
        if torch.func.debug_unwrap(x) is not x or unpack_dual(x, level=level).tangent is not None:
            _op.redispatch(below, a, b, scale)  # computed for its checks: they stand only in C++
            return _by_torch(a, b, scale)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return _Gradient.apply(below, a, b, scale)
    return _op.redispatch(below, a, b, scale)


_registry = torch.library.Library("scaled_relu", "FRAGMENT")
_registry.impl("scaled_relu", _autograd, "Autograd", with_keyset=True)
