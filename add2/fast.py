"""The fast lane: ops.py's two functions for eager calls on plain tensors, past the Python function at Autograd.

It gives way to ops.py wherever the difference could show; everywhere, if torch lacks a private name, or ADD2_FAST is 0.
"""

import sys

from torch import Tensor, is_grad_enabled, is_inference_mode_enabled, nn
from torch._C import DispatchKey, DispatchKeySet, _increment_version
from torch._C import _are_functorch_transforms_active as transforms
from torch._C import _is_tracing as tracing
from torch._C import _len_torch_dispatch_stack as dispatch_mode
from torch._C import _len_torch_function_stack as function_mode
from torch.autograd import Function, forward_ad, profiler
from torch.compiler import is_dynamo_compiling as compiling

from . import ops

# On to the kernel of the tensors' device. The fallback at Negative applies a minus sign that is still pending.
_CPU = DispatchKeySet(DispatchKey.CPU) | DispatchKeySet(DispatchKey.Negative)
_CUDA = DispatchKeySet(DispatchKey.CUDA) | DispatchKeySet(DispatchKey.Negative)
_add2, _launch = ops._add2._handle.redispatch_boxed, ops._launch._handle.redispatch_boxed
if _nvrtc := sys.modules.get("add2.nvrtc"):  # Python calls Python directly: the dispatcher would take 3 us

    def _add2(keys, a: Tensor, b: Tensor) -> Tensor:
        return _nvrtc.add2(a, b)

    def _launch(keys, c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
        _nvrtc.torch_launch_add2(c, a, b, n)


_PLAIN = (Tensor, nn.Parameter)  # other types may have a __torch_function__ or a __torch_dispatch__
forward_ad._current_level, profiler._is_profiler_enabled  # noqa: B018  (AttributeError here, not in a call)


def _is_watched() -> bool:
    """Whether a mode, a transform, a tracer, a profiler or a forward derivative wants to see the call."""
    return (
        compiling()
        or function_mode()
        or dispatch_mode()
        or transforms()
        or tracing()
        or profiler._is_profiler_enabled
        or forward_ad._current_level >= 0
    )


def add2(a: Tensor, b: Tensor) -> Tensor:
    if _is_watched() or type(a) not in _PLAIN or type(b) not in _PLAIN:
        return ops.add2(a, b)
    try:
        if (a.requires_grad or b.requires_grad) and is_grad_enabled():
            return _with_gradient(a, b)
        return _add2(_CUDA if a.is_cuda else _CPU, a, b)
    except RuntimeError:  # autocast may promote them; if not, ops.add2 refuses them in the same words
        return ops.add2(a, b)


def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    if _is_watched() or not (type(c) is type(a) is type(b) is Tensor and type(n) is int):
        return ops.torch_launch_add2(c, a, b, n)
    if (c.requires_grad or a.requires_grad or b.requires_grad) and is_grad_enabled():
        return ops.torch_launch_add2(c, a, b, n)
    if c.is_inference() and not is_inference_mode_enabled():
        return ops.torch_launch_add2(c, a, b, n)
    try:
        _launch(_CUDA if c.is_cuda else _CPU, c, a, b, n)
    except RuntimeError:
        return ops.torch_launch_add2(c, a, b, n)
    _increment_version((c,))


class _WithGradient(Function):
    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return _add2(_CUDA if a.is_cuda else _CPU, a, b)

    @staticmethod
    def backward(ctx, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        return grad, grad


_with_gradient = super(Function, _WithGradient).apply  # Function.apply without its search for transforms of torch.func
