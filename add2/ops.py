"""The operator's public functions, and what torch must know of them: gradient, fake kernel, vmap, autocast.

torch finds a gradient by a kernel at the dispatch key "Autograd": a Python function if registered from Python, called
even where no gradient is wanted, at several times the operator's cost. So we ask first; no_autograd has none there.
"""

import torch
from torch import Tensor
from torch._C import _dispatch_call_boxed, _increment_version
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from .function import Add2Function, batch_first

_ops = torch.ops.add2
_add2, _launch = _ops.add2.no_autograd._handle, _ops.torch_launch_add2.no_autograd._handle  # 0.5 us faster than calls
_PLAIN = (Tensor, Parameter)  # other subclasses have a __torch_function__ to be asked
_NOT_DIFFERENTIABLE = "torch_launch_add2: an argument requires grad, or a dual level is open; use add2(a, b)"


def add2(a: Tensor, b: Tensor) -> Tensor:
    """Return `a + b` as a new contiguous tensor, bit for bit what `torch.add(a, b)` computes.

    a is of any shape and strides; float32, float64, float16 or bfloat16; on a CPU or a CUDA device. b has a's shape,
    dtype and device (torch.autocast promotes dtypes as for torch.add). Otherwise RuntimeError; TypeError for no tensor.
    Differentiable any number of times. On CUDA asynchronous, on the current stream of the tensors' device.
    """
    if is_dynamo_compiling():
        return _ops.add2.default(a, b)  # what a graph should hold
    try:
        wanted = a.requires_grad | b.requires_grad
    except AttributeError:
        raise TypeError(f"add2: expected tensors, found {type(a)}, {type(b)}") from None
    if (wanted and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
        traced = torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling()
        return _ops.add2.default(a, b) if traced else _SingleLevel.apply(a, b)
    return _dispatch_call_boxed(_add2, a, b) if type(a) is type(b) is Tensor else _ops.add2.default(a, b)


def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """Write the first n elements of a + b, in row-major order, into c: c[0:n] = a[0:n] + b[0:n].

    As add2, but: 0 <= n <= the number of elements of each. c is contiguous, and may be a or b, but may not overlap them
    otherwise (a strided one counts from its first element to its last). Nothing may require a gradient, except under
    torch.no_grad(). Where an error is raised, nothing has been written.
    """
    if is_dynamo_compiling():
        return _ops.torch_launch_add2.default(c, a, b, n)
    try:
        wanted = c.requires_grad | a.requires_grad | b.requires_grad
    except AttributeError:
        raise TypeError(f"torch_launch_add2: expected tensors, found {type(c)}, {type(a)}, {type(b)}") from None
    if (wanted and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
        raise RuntimeError(_NOT_DIFFERENTIABLE)
    _increment_version((c,))  # a graph that has saved c must notice that it is written
    _dispatch_call_boxed(_launch, c, a, b, n)


# The same for torch.ops.add2. A transform of torch.func brings a call here once for each of its levels; each level is
# differentiated alone ("single-level"), and the call goes on below this key, to the next level or to the kernel.
class _SingleLevel(torch.autograd.function._SingleLevelFunction):
    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, keyset=None) -> Tensor:
        if keyset is None:  # from add2() above: there is but one level
            plain = type(a) in _PLAIN and type(b) in _PLAIN
            return _dispatch_call_boxed(_add2, a, b) if plain else _ops.add2.no_autograd(a, b)
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return _below_autograd(_ops.add2.default, keyset, a, b)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, grad, None  # torch drops what is not needed; asking ctx.needs_input_grad takes longer

    jvp = Add2Function.jvp


def _below_autograd(op, keyset, *arguments):
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)


def _add2_autograd(keyset, a: Tensor, b: Tensor) -> Tensor:
    if (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)) or forward_ad._current_level >= 0:
        with enable_single_level_autograd_function():
            return _SingleLevel.apply(a, b, keyset)
    return _below_autograd(_ops.add2.default, keyset, a, b)


def _launch_autograd(keyset, c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    if (torch.is_grad_enabled() and torch._C._any_requires_grad(c, a, b)) or forward_ad._current_level >= 0:
        raise RuntimeError(_NOT_DIFFERENTIABLE)
    _increment_version((c,))
    _below_autograd(_ops.torch_launch_add2.default, keyset, c, a, b, n)


# Fake kernels compute shape, dtype and device but no values: torch.compile, torch.export and device "meta" use them.
def _add2_fake(a: Tensor, b: Tensor) -> Tensor:
    for what in ("shape", "dtype", "device"):
        found, expected = getattr(b, what), getattr(a, what)
        torch._check(found == expected, lambda w=what, f=found, e=expected: f"add2: b has {w} {f}, expected {e} like a")
    torch._check(a.dtype.is_floating_point, lambda: f"add2: a has dtype {a.dtype}, expected a floating-point one")
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def _launch_fake(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    good = all(x.dtype == c.dtype and x.device == c.device and 0 <= n <= x.numel() for x in (c, a, b))
    good = good and c.is_contiguous() and c.dtype.is_floating_point
    torch._check(good, lambda: "torch_launch_add2: c, a, b differ in dtype or device, or c or n is not as documented")


# x + f(x) with x in float32 and f(x) in bfloat16 is what residual networks do under autocast.
def _add2_autocast(a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast(a.device.type, enabled=False):
        return add2(*(x.to(torch.promote_types(a.dtype, b.dtype)) for x in (a, b)))


_library = torch.library.Library("add2", "FRAGMENT")  # adds to what kernel/add2.cpp has registered
_library.impl("add2", _add2_autograd, "Autograd", with_keyset=True)
_library.impl("torch_launch_add2", _launch_autograd, "Autograd", with_keyset=True)
_library.impl("add2.no_autograd", torch.library.fallthrough_kernel, "Autograd")
_library.impl("torch_launch_add2.no_autograd", torch.library.fallthrough_kernel, "Autograd")
for _overload in ("", ".no_autograd"):
    torch.library.register_fake(f"add2::add2{_overload}", _add2_fake)
    torch.library.register_fake(f"add2::torch_launch_add2{_overload}", _launch_fake)
    torch.library.register_vmap(f"add2::add2{_overload}", lambda *x: (_ops.add2.default(*batch_first(*x)), 0))
    _library.impl(f"add2{_overload}", _add2_autocast, "AutocastCPU")
    _library.impl(f"add2{_overload}", _add2_autocast, "AutocastCUDA")
