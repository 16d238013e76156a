"""The gradient by hand: an autograd.Function, and an nn.Module around it. It serves a binding that torch's dispatcher
does not know, such as pybind11's."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .shapes import batch_first

# torch runs jvp() with derivatives off, so a forward derivative of a forward derivative would silently miss a term. To
# switch them on there is only a private name; without it all else works.
_forward_derivatives = getattr(forward_ad, "_set_fwd_grad_enabled", nullcontext)


class Add2Function(torch.autograd.Function):
    """c = a + b; dc/da = dc/db = 1. apply(a, b, forward[, backward]); forward(a, b) -> c, backward(dc) -> (da, db)."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, forward: Callable, backward: Callable | None = None) -> Tensor:
        return forward(a, b)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:  # apart from forward(): torch.func.grad needs it so
        ctx.backward_of = inputs[3] if len(inputs) > 3 else None
        ctx.set_materialize_grads(False)  # where no gradient arrives, backward gets None and passes it on

    @staticmethod
    def backward(ctx, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """One gradient for each input of forward(): None for what is no tensor, and for what needs none."""
        if grad is None or ctx.backward_of is None:
            grad_a = grad_b = grad
        else:
            grad_a, grad_b = ctx.backward_of(grad)
        gradients = (grad_a, grad_b, None, None)
        return tuple(x if needed else None for x, needed in zip(gradients, ctx.needs_input_grad, strict=False))

    @staticmethod
    def jvp(ctx, tangent_a: Tensor | None, tangent_b: Tensor | None, *_: None) -> Tensor:
        with torch.enable_grad(), _forward_derivatives(True):
            if tangent_a is None or tangent_b is None:
                return (tangent_b if tangent_a is None else tangent_a).clone()
            return tangent_a + tangent_b

    @staticmethod
    def vmap(info, in_dims: tuple, a: Tensor, b: Tensor, *functions: Callable) -> tuple[Tensor, int]:
        return Add2Function.apply(*batch_first(info, in_dims, a, b), *functions), 0


def launch(a: Tensor, b: Tensor) -> Tensor:
    """add2 by the raw call, which counts elements and does not look at shapes."""
    if a.shape != b.shape:
        raise RuntimeError(f"add2: b has shape {[*b.shape]}, expected {[*a.shape]} like a")
    c = torch.empty_like(a, memory_format=torch.contiguous_format)
    torch.ops.add2.torch_launch_add2(c, a, b, c.numel())
    return c


class Add2(torch.nn.Module):
    """add2 as a layer without parameters; `binding` is a module of --binding pybind11, or None for the raw call."""

    def __init__(self, binding: object = None) -> None:
        super().__init__()
        self.functions = (launch,) if binding is None else (binding.forward, binding.backward)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return Add2Function.apply(a, b, *self.functions)
