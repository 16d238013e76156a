"""The operator's public functions, and what torch must know of it: gradient, vmap, autocast. All by torch's public
interface, so each part can be copied. (add2/fast.py shortens the way of eager calls.)"""

import operator
import sys

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .shapes import batch_first  # registers the fake kernels, too

_add2, _launch = torch.ops.add2.add2.default, torch.ops.add2.torch_launch_add2.default


def add2(a: Tensor, b: Tensor) -> Tensor:
    """Return `a + b` as a new contiguous tensor, bit for bit what `torch.add(a, b)` computes (NaNs may differ in bits).

    a is of any shape and strides; float32, float64, float16 or bfloat16; on a CPU or a CUDA device. b has a's shape,
    dtype and device (torch.autocast promotes dtypes as for torch.add). Otherwise RuntimeError; TypeError for no tensor.
    Differentiable any number of times. On CUDA asynchronous, on the current stream of the tensors' device.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        raise TypeError(f"add2: a has type {type(a)} and b {type(b)}, expected two tensors")
    if not type(a) is type(b) is Tensor and "torch.distributed.tensor" in sys.modules:
        from . import sharding  # noqa: F401  (registers add2 for DTensors; not sooner, as that takes a second to import)
    # torch.func and forward derivatives need an autograd.Function with a jvp; register_autograd does not make one.
    if torch.compiler.is_compiling():
        if _has_tangent(a) or _has_tangent(b):  # compiled, a Function's jvp is lost without a message (torch 2.15)
            return torch.add(a, b)
    elif _has_tangent(a) or _has_tangent(b) or _is_wrapped(a) or _is_wrapped(b):
        from .function import Add2Function

        return Add2Function.apply(a, b, _add2)
    return _add2(a, b)


def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """Write the first n elements of a + b, in row-major order, into c: c[0:n] = a[0:n] + b[0:n].

    As add2, but: 0 <= n <= the number of elements of each. c is contiguous, and may be a or b, but may not overlap them
    otherwise (a strided one counts from its first element to its last). Nothing may require a gradient, except under
    torch.no_grad(). Where an error is raised, nothing has been written.
    """
    if not (isinstance(c, Tensor) and isinstance(a, Tensor) and isinstance(b, Tensor)):
        raise TypeError(f"add2: c has type {type(c)}, a {type(a)} and b {type(b)}, expected three tensors")
    if not isinstance(n, (int, torch.SymInt)):
        n = operator.index(n)  # TypeError for 2.7, and for a tensor of it
    if not -(2**63) <= n < 2**63:
        raise RuntimeError(f"add2: n is {n}, expected 0 to {c.numel()}, all of c")
    if not torch.compiler.is_compiling() and c.is_neg():
        raise RuntimeError("add2: c has a minus sign that is still to be applied; pass c.resolve_neg()")
    _launch(c, a, b, n)


def _has_tangent(x: Tensor) -> bool:
    return forward_ad.unpack_dual(x).tangent is not None


def _is_wrapped(x: Tensor) -> bool:  # by a transform of torch.func
    return torch.func.debug_unwrap(x) is not x


torch.library.register_autograd(
    "add2::add2",
    lambda ctx, grad: (grad, grad),
    setup_context=lambda ctx, inputs, output: ctx.set_materialize_grads(False),  # no gradient stays None, not zeros
)
torch.library.register_vmap("add2::add2", lambda info, dims, a, b: (_add2(*batch_first(info, dims, a, b)), 0))
_library = torch.library.Library("add2", "FRAGMENT")  # adds to kernel/add2.cpp's


def _add2_autocast(a: Tensor, b: Tensor) -> Tensor:
    """x + f(x), x in float32 and f(x) in bfloat16, is what residual networks compute. Promotes as torch.add does."""
    with torch.autocast(a.device.type, enabled=False):
        return add2(*(x.to(torch.promote_types(a.dtype, b.dtype)) for x in (a, b)))


def _launch_autograd(keyset, c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """Not differentiable, so it refuses where torch.add(out=c) does; and a graph that has saved c must notice it."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (c, a, b))
    if wanted or any(_has_tangent(x) or _is_wrapped(x) for x in (c, a, b)):
        raise RuntimeError("add2: torch_launch_add2 has no derivative, and an argument requires grad; use add2(a, b)")
    _launch.redispatch(keyset.remove(keyset.highestPriorityTypeId()), c, a, b, n)  # on to the key below Autograd
    torch.autograd.graph.increment_version(c)


_library.impl("torch_launch_add2", _launch_autograd, "Autograd", with_keyset=True)
for _key in ("AutocastCPU", "AutocastCUDA"):
    _library.impl("add2", _add2_autocast, _key)
