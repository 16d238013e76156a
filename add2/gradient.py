"""The derivatives: functions that torch's dispatcher calls before the kernel, on every call.

torch.library.register_autograd makes such a function, too. It is shorter, but drops forward derivatives without a word,
and torch.func.grad over it fails. This one has every derivative: page 4 says how.

For those who write the pattern themselves: every name here is public, but OpOverload.redispatch and the methods of
DispatchKeySet have no documentation. torch.compile runs these functions to trace the operator. A tangent has to be made
in the compiled function: torch 2.10 and 2.13 lose one that comes from outside, for torch.add, too; 2.14 refuses it.
"""

from functools import partial

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.func import debug_unwrap
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from .workarounds import is_compiling

_add2, _launch = torch.ops.add2.add2.default, torch.ops.add2.torch_launch_add2.default


class WithGradient(torch.autograd.Function):
    """c = a + b; dc/da = dc/db = 1. add: what computes it."""

    @staticmethod
    def forward(ctx, add, a: Tensor, b: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)  # where no gradient arrives, backward gets None and passes it on
        return add(a, b)

    @staticmethod
    def backward(ctx, grad: Tensor | None) -> tuple[None, Tensor | None, Tensor | None]:
        return None, grad, grad


def _add2_autograd(keys, a: Tensor, b: Tensor) -> Tensor:
    below = keys.remove(keys.highestPriorityTypeId())  # the key below Autograd
    is_wrapped = debug_unwrap(a) is not a or debug_unwrap(b) is not b  # by a transform of torch.func
    if (is_wrapped or is_compiling() or is_dual_level_open(a)) and (_has_derivative(a) or _has_derivative(b)):
        # Not by an autograd.Function with setup_context, jvp and vmap: torch.func refuses one at this key.
        _add2.redispatch(below, a, b)  # refuses what it always refuses
        return torch.add(a, b)  # the same sum by torch's own functions, which have every derivative
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return WithGradient.apply(partial(_add2.redispatch, below), a, b)
    return _add2.redispatch(below, a, b)


def _launch_in_place(keys, c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """Refuse where torch.add(out=c) does, but before anything is written."""
    tensors = (c, a, b)
    is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    wrapped = [x for x in tensors if debug_unwrap(x) is not x]
    # torch.compile traces twice. In its second step, when it records a graph, a look for a tangent would leave an alias
    # of c in there, for which the default backend fails. The first step has looked.
    is_recording = torch.compiler.is_compiling() and get_proxy_mode() is not None
    has_tangent = not is_recording and any(unpack_dual(x).tangent is not None for x in tensors)
    if is_recorded or has_tangent or any(map(_has_derivative, wrapped)):
        raise RuntimeError("add2: torch_launch_add2 has no derivative, and an argument requires grad; use add2(a, b)")
    if c.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("add2: c is an inference tensor, which can be written only under torch.inference_mode()")
    _launch.redispatch(keys.remove(keys.highestPriorityTypeId()), c, a, b, n)
    torch.autograd.graph.increment_version(c)  # a graph that has saved c notices


def is_dual_level_open(x: Tensor) -> bool:
    """Forward mode is on. Any tensor tells: unpack_dual returns a view of it inside of dual_level(), itself outside."""
    return unpack_dual(x).primal is not x


def _has_derivative(x: Tensor) -> bool:
    """A forward derivative, or any derivative that a transform of torch.func takes."""
    is_wrapped = debug_unwrap(x) is not x  # torch documents it for debugging; here its result is only compared
    if is_wrapped or is_compiling():  # unpack_dual's default level, a variable in Python, may not be set then
        return (is_wrapped and x.requires_grad) or unpack_dual(x, level=0).tangent is not None
    return unpack_dual(x).tangent is not None


_library = torch.library.Library("add2", "FRAGMENT")
_library.impl("add2", _add2_autograd, "Autograd", with_keyset=True)
_library.impl("torch_launch_add2", _launch_in_place, "ADInplaceOrView", with_keyset=True)
