"""The operator's public functions, vmap and autocast; gradient.py has the derivatives, shapes.py the fake kernels,
workarounds.py what torch gets wrong. Only public names of torch are used, so each part can be copied."""

import operator
import sys

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from . import gradient  # noqa: F401  (registers the derivatives)
from .shapes import batch_first  # registers the fake kernels, too

_add2, _launch = torch.ops.add2.add2.default, torch.ops.add2.torch_launch_add2.default


def add2(a: Tensor, b: Tensor) -> Tensor:
    """Return `a + b` as a new tensor with the bits of torch.add (NaNs may differ), laid out as torch.empty_like(a).

    a has any shape and strides; float32, float64, float16 or bfloat16; on a CPU or a CUDA device. b has a's shape,
    dtype and device (torch.autocast promotes dtypes as for torch.add). Otherwise RuntimeError; TypeError for no tensor.
    An input whose strides differ from the result's is copied first. Differentiable any number of times. On CUDA
    asynchronous, on the current stream of the tensors' device.
    """
    _check_types(a=a, b=b)
    return _add2(a, b)


def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """Write the first n elements of a + b, in row-major order, into c: c[0:n] = a[0:n] + b[0:n].

    As add2, but: 0 <= n <= the number of elements of each. c is contiguous, and may be a or b, but may not overlap them
    otherwise (a strided one counts from its first element to its last). Nothing may require a gradient, except under
    torch.no_grad(). Where an error is raised, nothing has been written.
    """
    _check_types(c=c, a=a, b=b)
    if not isinstance(n, (int, torch.SymInt)) and not has_torch_function((n,)):
        n = operator.index(n)  # TypeError for 2.7, and for a tensor of it
    if not torch.compiler.is_compiling() and isinstance(n, int) and not -(2**63) <= n < 2**63:  # no SymInt is so large
        raise RuntimeError(f"add2: n is {n}, expected 0 to {c.numel()}, all of c")
    return _launch(c, a, b, n)


def _check_types(**arguments: object) -> None:
    """Refuse what is no tensor. Objects with a __torch_function__ may be something else: they know what to do."""
    for name, x in arguments.items():
        if not isinstance(x, Tensor) and not has_torch_function(tuple(arguments.values())):
            raise TypeError(f"add2: {name} has type {type(x)}, expected a tensor")
    if "torch.distributed.tensor" in sys.modules:
        from . import sharding  # noqa: F401  (for DTensors; not sooner, as that takes a second to import)


def _add2_autocast(a: Tensor, b: Tensor) -> Tensor:
    """x + f(x), x in float32 and f(x) in bfloat16, is what residual networks compute. Promotes as torch.add does."""
    with torch.autocast(a.device.type, enabled=False):
        return _add2(*(x.to(torch.promote_types(a.dtype, b.dtype)) for x in (a, b)))


torch.library.register_vmap("add2::add2", lambda info, dims, a, b: (_add2(*batch_first(info, dims, a, b)), 0))
_library = torch.library.Library("add2", "FRAGMENT")  # adds to kernel/add2.cpp's
for _key in ("AutocastCPU", "AutocastCUDA"):
    _library.impl("add2", _add2_autocast, _key)
