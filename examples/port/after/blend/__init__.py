"""Two operators, on float32, float64 and float16, on CPUs and CUDA GPUs."""

from pathlib import Path

import torch  # before _C, which is linked to torch's libraries
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

torch.ops.load_library(Path(__file__).with_name("_C.so"))


def blend(a: Tensor, b: Tensor, mask: Tensor | None = None, alpha: float = 0.5) -> Tensor:
    """Return alpha * a + (1 - alpha) * b where mask is true (everywhere without a mask), else a. Differentiable."""
    _refuse_tangents(a, b)
    if isinstance(alpha, Tensor):  # torch would convert it, and drop its gradient
        raise TypeError("blend: alpha is a tensor, expected a number: pass alpha.item()")
    return torch.ops.blend.blend(a, b, mask, alpha)


def sum_list(tensors: list[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, dtype and device. Differentiable."""
    torch._check(len(tensors) > 0, lambda: "sum_list: expected at least one tensor")  # their device chooses the kernel
    _refuse_tangents(*tensors)
    return torch.ops.blend.sum_list(tensors)


def _result(first: Tensor, *others: Tensor) -> Tensor:
    for x in others:
        torch._check(x.device == first.device and x.dim() == first.dim(), lambda: "blend: tensors differ")
        for m, n in zip(x.shape, first.shape, strict=True):  # one at a time: a size may depend on data
            torch._check(m == n, lambda: "blend: tensors differ")
    return torch.empty_like(first, memory_format=torch.contiguous_format)


torch.library.register_fake("blend::blend", lambda a, b, mask, alpha: _result(a, b, *([] if mask is None else [mask])))
torch.library.register_fake("blend::sum_list", lambda tensors: _result(*tensors))


@torch.library.register_vmap("blend::sum_list")  # torch loops over the members by itself, except for lists of tensors
def _(info, dims, tensors: list[Tensor]):
    pairs = zip(tensors, dims[0], strict=True)
    return sum_list([x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0) for x, d in pairs]), 0


def _refuse_tangents(*tensors: Tensor) -> None:  # register_autograd would drop them without a message
    if any(unpack_dual(x).tangent is not None for x in tensors):
        raise RuntimeError("blend: forward derivatives are not implemented")


def _save(ctx, inputs, output) -> None:
    _, _, mask, ctx.alpha = inputs
    ctx.save_for_backward(mask)


def _blend_backward(ctx, grad: Tensor):
    (mask,) = ctx.saved_tensors
    grad_a, grad_b = grad * ctx.alpha, grad * (1 - ctx.alpha)
    if mask is not None:
        grad_a, grad_b = torch.where(mask, grad_a, grad), torch.where(mask, grad_b, 0)  # grad_b * mask: inf * 0 is NaN
    return grad_a, grad_b, None, None


torch.library.register_autograd("blend::blend", _blend_backward, setup_context=_save)
torch.library.register_autograd("blend::sum_list", lambda ctx, grad: [grad] * len(ctx.needs_input_grad[0]))
