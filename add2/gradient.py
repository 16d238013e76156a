"""The derivatives: functions that torch's dispatcher calls before the kernel, on every call.

torch.library.register_autograd makes such a function, too. It is shorter, but drops forward derivatives without a word,
and torch.func.grad over it fails. This one has every derivative: page 4 says how.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad

_add2, _launch = torch.ops.add2.add2.default, torch.ops.add2.torch_launch_add2.default


class _WithGradient(torch.autograd.Function):
    """c = a + b; dc/da = dc/db = 1. keys: where the dispatcher goes on."""

    @staticmethod
    def forward(ctx, keys, a: Tensor, b: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)  # where no gradient arrives, backward gets None and passes it on
        return _add2.redispatch(keys, a, b)

    @staticmethod
    def backward(ctx, grad: Tensor | None) -> tuple[None, Tensor | None, Tensor | None]:
        return None, grad, grad


def _add2_autograd(keys, a: Tensor, b: Tensor) -> Tensor:
    below = keys.remove(keys.highestPriorityTypeId())  # the key below Autograd
    if has_tangent(a, b):
        return torch.add(a, b)  # the same sum by torch's own functions, which have every derivative
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        if (a.requires_grad and _is_wrapped(a)) or (b.requires_grad and _is_wrapped(b)):
            return torch.add(a, b)  # a transform of torch.func has wrapped it, and takes the derivative
        return _WithGradient.apply(below, a, b)
    return _add2.redispatch(below, a, b)


def _launch_in_place(keys, c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """Refuse where torch.add(out=c) does, but before anything is written."""
    is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (c, a, b))
    if is_recorded or has_tangent(c, a, b):
        raise RuntimeError("add2: torch_launch_add2 has no derivative, and an argument requires grad; use add2(a, b)")
    if c.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("add2: c is an inference tensor, which can be written only under torch.inference_mode()")
    _launch.redispatch(keys.remove(keys.highestPriorityTypeId()), c, a, b, n)
    torch.autograd.graph.increment_version(c)  # a graph that has saved c notices


def has_tangent(*tensors: Tensor) -> bool:
    """Whether a tensor carries a forward derivative."""
    if torch.compiler.is_compiling():  # unpack_dual has no default level then, and would add nodes to the graph
        return any(_is_wrapped(x) and forward_ad.unpack_dual(x, level=0).tangent is not None for x in tensors)
    return may_have_tangents(tensors[0]) and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def may_have_tangents(x: Tensor) -> bool:
    """False outside of dual_level() and jvp: there unpack_dual returns the tensor itself, inside a view of it."""
    return forward_ad.unpack_dual(x).primal is not x


def _is_wrapped(x: Tensor) -> bool:
    return torch.func.debug_unwrap(x) is not x


_library = torch.library.Library("add2", "FRAGMENT")
_library.impl("add2", _add2_autograd, "Autograd", with_keyset=True)
_library.impl("torch_launch_add2", _launch_in_place, "ADInplaceOrView", with_keyset=True)
