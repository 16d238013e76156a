"""The operator's public functions, and what torch must know of them beyond their kernels."""

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def add2(a: Tensor, b: Tensor) -> Tensor:
    """Return `a + b` as a new contiguous tensor, bit for bit what `torch.add(a, b)` computes.

    Args:
        a: a tensor of any shape and strides; float32, float64, float16 or bfloat16; on a CPU or a CUDA device.
        b: a tensor of a's shape, dtype and device. There is no broadcasting and no type promotion.

    Raises:
        RuntimeError: shape, dtype or device is not as above. Nothing has been computed then.

    Differentiable in a and b. On CUDA the call is asynchronous, on the current stream of the tensors' device.
    """
    return torch.ops.add2.add2(a, b)


def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """Write `a + b` into c, for the first n elements of each in row-major order: c[0:n] = a[0:n] + b[0:n].

    Args:
        c: the contiguous tensor that is written. It may be a or b themselves, but may not overlap them otherwise.
        a, b: the inputs, of any shape and strides, with c's dtype and device.
        n: the number of elements, from 0 to the number of elements of the smallest of the three.

    Raises:
        RuntimeError: an argument is not as above. Nothing has been written then.

    Not differentiable: use `add2` where gradients are wanted.
    """
    torch.ops.add2.torch_launch_add2(c, a, b, n)


# A fake kernel computes shape, dtype and device but no values: torch.compile and torch.export trace with it. It
# repeats the checks, so that a wrong call fails when it is traced.
@torch.library.register_fake("add2::add2")
def _(a: Tensor, b: Tensor) -> Tensor:
    torch._check(a.dtype in _DTYPES, lambda: f"add2: a has dtype {a.dtype}, expected one of {_DTYPES}")
    torch._check(b.dtype == a.dtype, lambda: f"add2: b has dtype {b.dtype}, expected {a.dtype} like a")
    torch._check(b.device == a.device, lambda: f"add2: b is on {b.device}, expected {a.device} like a")
    torch._check(
        b.shape == a.shape,
        lambda: f"add2: b has shape {list(b.shape)}, expected {list(a.shape)} like a (add2 does not broadcast)",
    )
    return torch.empty_like(a, memory_format=torch.contiguous_format)


@torch.library.register_fake("add2::torch_launch_add2")
def _(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    return None


# d(a + b)/da = d(a + b)/db = 1: the gradient of the result is the gradient of each input. Nothing has to be saved.
def _backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    needs_a, needs_b = ctx.needs_input_grad
    return grad if needs_a else None, grad if needs_b else None


torch.library.register_autograd("add2::add2", _backward)
