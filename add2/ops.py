"""The operator's public functions, vmap and autocast; gradient.py has the derivatives, shapes.py the fake kernels.
Only public names of torch are used, so each part can be copied."""

import operator
import sys

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

from . import gradient
from .shapes import batch_first  # registers the fake kernels, too

_add2, _launch = torch.ops.add2.add2.default, torch.ops.add2.torch_launch_add2.default
_add2_plain, _launch_plain = torch.ops.add2.add2.plain, torch.ops.add2.torch_launch_add2.plain
# torch 2.10 and 2.11 compile make_dual() so that gradient.py does not see the tangent. (With them jvp() after grad() in
# one compiled function ends in an error.)
_HIDES_TANGENTS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def add2(a: Tensor, b: Tensor) -> Tensor:
    """Return `a + b` as a new tensor with the bits of torch.add (NaNs may differ), laid out as torch.empty_like(a).

    a has any shape and strides; float32, float64, float16 or bfloat16; on a CPU or a CUDA device. b has a's shape,
    dtype and device (torch.autocast promotes dtypes as for torch.add). Otherwise RuntimeError; TypeError for no tensor.
    An input whose strides differ from the result's is copied first. Differentiable any number of times. On CUDA
    asynchronous, on the current stream of the tensors' device.
    """
    # Whatever may need the operator itself: compilers, subclasses, forward derivatives, torch.func ...
    is_watched = torch.compiler.is_compiling() or torch.jit.is_tracing() or not type(a) is type(b) is Tensor
    if is_watched or gradient.is_dual_level_open(a):
        return _add2_any(a, b)
    # Plain calls: past the Python function at Autograd, which takes 4 us or more of an H200's host to call.
    if not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
        return _add2_plain(a, b)
    try:
        return gradient.WithGradient.apply(_add2_plain, a, b)
    except RuntimeError:  # inside torch.func, where apply() refuses; or the operator does, and will again
        return _add2_any(a, b)


def _add2_any(a: Tensor, b: Tensor) -> Tensor:
    """Whatever is not a plain call."""
    if not type(a) is type(b) is Tensor:
        _check_types(a=a, b=b)
        if "torch.distributed.tensor" in sys.modules:
            from . import sharding  # noqa: F401  (for DTensors; not sooner, as that takes a second to import)
    if _HIDES_TANGENTS and torch.compiler.is_compiling() and any(map(_has_tangent, (a, b))):
        _add2(a, b)  # for its checks
        return torch.add(a, b)  # as gradient.py does for all others
    return _add2(a, b)


def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """Write the first n elements of a + b, in row-major order, into c: c[0:n] = a[0:n] + b[0:n].

    As add2, but: 0 <= n <= the number of elements of each. c is contiguous, and may be a or b, but may not overlap them
    otherwise (a strided one counts from its first element to its last). Nothing may require a gradient, except under
    torch.no_grad(). Where an error is raised, nothing has been written.
    """
    # Whatever may need the operator itself, or be refused: compilers, subclasses, derivatives, numpy's integers ...
    if torch.compiler.is_compiling() or not (type(c) is type(a) is type(b) is Tensor and type(n) is int):
        return _launch_any(c, a, b, n)
    if torch.is_grad_enabled() and (c.requires_grad or a.requires_grad or b.requires_grad):
        return _launch_any(c, a, b, n)
    if not 0 <= n < 2**63 or c.is_inference() or gradient.is_dual_level_open(c):
        return _launch_any(c, a, b, n)
    # Plain calls: past the Python function at Autograd, which takes 4 us or more of an H200's host to call.
    _launch_plain(c, a, b, n)
    torch.autograd.graph.increment_version(c)


def _launch_any(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """Whatever is not a plain call: tracers, subclasses, other integers, arguments to be refused."""
    _check_types(c=c, a=a, b=b)
    if not isinstance(n, (int, torch.SymInt)) and not has_torch_function((n,)):
        n = operator.index(n)  # TypeError for 2.7, and for a tensor of it
    if torch.compiler.is_compiling():
        if any(map(_has_tangent, (c, a, b))):
            raise RuntimeError("add2: torch_launch_add2 has no derivative; use add2(a, b)")
    elif isinstance(n, int) and not -(2**63) <= n < 2**63:
        raise RuntimeError(f"add2: n is {n}, expected 0 to {c.numel()}, all of c")
    elif isinstance(c, Tensor) and c.is_neg():  # a minus sign still to be applied:
        plain = c.resolve_neg()  # torch 2.13 does this for an operator's inputs only
        _launch(plain, a, b, n)
        c.copy_(plain)
        return None
    return _launch(c, a, b, n)


def _has_tangent(x: Tensor) -> bool:
    return forward_ad.unpack_dual(x).tangent is not None


def _check_types(**arguments: object) -> None:
    if has_torch_function(tuple(arguments.values())):
        return  # not a tensor for Python, but it knows what to do
    for name, x in arguments.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"add2: {name} has type {type(x)}, expected a tensor")


def _add2_autocast(a: Tensor, b: Tensor) -> Tensor:
    """x + f(x), x in float32 and f(x) in bfloat16, is what residual networks compute. Promotes as torch.add does."""
    with torch.autocast(a.device.type, enabled=False):
        return add2(*(x.to(torch.promote_types(a.dtype, b.dtype)) for x in (a, b)))


torch.library.register_vmap("add2::add2", lambda info, dims, a, b: (_add2(*batch_first(info, dims, a, b)), 0))
_library = torch.library.Library("add2", "FRAGMENT")  # adds to kernel/add2.cpp's
for _key in ("AutocastCPU", "AutocastCUDA"):
    _library.impl("add2", _add2_autocast, _key)
    _library.impl("add2.plain", _add2_autocast, _key)
# Modes, subclasses (the key Python), torch.func and tensors without data see the operator itself, not `plain`.
for _key in ("Python", "FuncTorchDynamicLayerFrontMode", "Meta", "Negative"):
    _library.impl("add2.plain", _add2_any, _key)
    _library.impl("torch_launch_add2.plain", _launch_any, _key)
