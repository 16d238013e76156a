"""Every derivative for an operator in C++. Nothing here is about squared_relu: a new operator needs no change here.

torch.library.register_autograd registers a gradient, too. The functions that it takes, register_derivatives() takes as
well, so one line of __init__.py says which of both is used.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

_registries: list[torch.library.Library] = []  # what a Library has registered is gone when it is deleted


def register_derivatives(
    op: Any,
    by_torch: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    *,
    setup_context: Callable[..., None] | None = None,
) -> None:
    """Give an operator every derivative that torch knows.

    op: an operator without keyword-only arguments, such as torch.ops.NAMESPACE.NAME.default.
    by_torch(*arguments): the same result by torch's own functions. It serves forward derivatives and torch.func, and
        without `backward` ordinary gradients as well.
    backward, setup_context: the gradient, as torch.library.register_autograd takes them.
    """

    def autograd(keys: Any, *arguments: Any) -> Any:
        below = partial(op.redispatch, keys.remove(keys.highestPriorityTypeId()))  # past Autograd: on to C++
        if any(isinstance(x, (list, tuple)) and any(isinstance(y, Tensor) for y in x) for x in arguments):
            raise TypeError(f"register_derivatives: {op} takes a list of tensors: use register_autograd")
        is_recorded = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments)
        if any(map(_has_derivative, arguments)) or (is_recorded and backward is None):
            below(*map(_without_derivative, arguments))  # for its checks, which stand only in C++
            return by_torch(*arguments)
        if is_recorded:
            apply: Any = _Gradient.apply  # torch up to 2.13 gives it no types, which mypy --strict refuses
            return apply(*arguments, (below, backward, setup_context))
        return below(*arguments)

    registry = torch.library.Library(op.namespace, "FRAGMENT")
    # torch.compile runs autograd() to trace the operator, and must not compile it by itself as well.
    registry.impl(op, torch.compiler.disable(autograd), "Autograd", with_keyset=True)
    _registries.append(registry)


def refuse_derivatives(op: Any, message: str) -> None:
    """Let a derivative of this operator end in a RuntimeError with this message: when it is taken, not at the call."""

    def refuse(*arguments: Any) -> None:
        raise RuntimeError(message)

    register_derivatives(op, refuse, refuse)


class _Gradient(torch.autograd.Function):
    """Calls the operator and notes for autograd what to do later. The last argument of forward is not the operator's,
    so ctx.needs_input_grad[i] belongs to the operator's argument i."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *inputs, (below, ctx.own_backward, setup_context) = arguments
        output = below(*inputs)
        if setup_context is not None:
            setup_context(ctx, tuple(inputs), output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        found = ctx.own_backward(ctx, *grads)
        return *(found if isinstance(found, tuple) else (found,)), None


def _unpack(x: Tensor) -> Any:
    """x without its forward derivative, and that. The default level is wrong while torch.compile traces."""
    return unpack_dual(x, level=0 if torch.compiler.is_compiling() else None)


def _without_derivative(x: Any) -> Any:
    return _unpack(x).primal.detach() if isinstance(x, Tensor) else x


def _has_derivative(x: Any) -> bool:
    """Whether x has a forward derivative, or any that a transform of torch.func takes."""
    if not isinstance(x, Tensor):
        return False
    if torch.func.debug_unwrap(x) is not x:  # inside of torch.func
        return x.requires_grad or unpack_dual(x, level=0).tangent is not None
    return _unpack(x).tangent is not None


def is_tangent_hidden(*arguments: Any) -> bool:
    """Whether torch would lose a forward derivative: torch 2.10 and 2.11, while they compile, hide it from autograd()
    above (https://github.com/pytorch/pytorch/issues/192639 is of that kind). For torch from 2.13 on, delete this
    function and the branch that calls it."""
    if not _HIDES_TANGENTS or not torch.compiler.is_compiling():
        return False
    return any(isinstance(x, Tensor) and unpack_dual(x).tangent is not None for x in arguments)


_HIDES_TANGENTS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
