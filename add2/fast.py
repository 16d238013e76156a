"""Saves microseconds, and nothing else: without this file, and the line in __init__.py that imports it, every call is
as right as with it. Page 4 says what it wins. Read ops.py first.

torch calls gradient.py's functions on each call, and a call from C++ to Python and back takes 4 us or more of an H200's
host. So kernel/add2.cpp has a second overload of each operator, `plain`: the same C++ function, without a derivative.
It is called only where nothing at all watches. The functions below ask for what torch keeps in Python; the dispatcher
asks for the rest: at every key but those of a plain tensor, `plain` leads back to the operator itself. (A program that
replaces the operator's kernel for a device replaces that of `plain`, too.)
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling
from torch.overrides import has_torch_function

from . import gradient, ops

_add2, _launch = torch.ops.add2.add2.plain, torch.ops.add2.torch_launch_add2.plain

# The keys that a call with dense tensors on a CPU or a CUDA device visits, while nothing watches and no derivative is
# needed. (Dense, Autograd and AutogradFunctionality stand for some of the others, Undefined for none.)
_PLAIN_KEYS = {"CPU", "CUDA", "Dense", "BackendSelect", "ADInplaceOrView", "Undefined"}
_PLAIN_KEYS |= {"AutogradCPU", "AutogradCUDA", "Autograd", "AutogradFunctionality"}
_ANY_TENSOR = torch.empty(0, device="cpu")  # not one that torch.func may have wrapped: vmap has no rule for unpack_dual
_KEYS_THAT_PYTHON_DOES_NOT_LIST = ("Tracer", "DeferredInit", "Fake", "VmapMode")  # the first is torch.jit.trace's


def add2(a: Tensor, b: Tensor) -> Tensor:
    if is_compiling() or has_torch_function((a, b)) or not type(a) is type(b) is Tensor:
        return ops.add2(a, b)
    if unpack_dual(_ANY_TENSOR).primal is not _ANY_TENSOR:  # forward mode is on: it returns a view
        return ops.add2(a, b)
    if not ((a.requires_grad or b.requires_grad) and torch.is_grad_enabled()):
        return _add2(a, b)
    if torch.jit.is_tracing():  # it would record the Function, not the operator
        return ops.add2(a, b)
    try:
        return gradient.WithGradient.apply(_add2, a, b)
    except RuntimeError:  # inside torch.func, where apply() refuses; or the operator does, and will again
        return ops.add2(a, b)


def torch_launch_add2(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    if is_compiling() or has_torch_function((c, a, b)) or not type(c) is type(a) is type(b) is Tensor:
        return ops.torch_launch_add2(c, a, b, n)
    if c.requires_grad or a.requires_grad or b.requires_grad or c.is_inference():
        return ops.torch_launch_add2(c, a, b, n)
    if not (type(n) is int and 0 <= n < 2**63) or unpack_dual(_ANY_TENSOR).primal is not _ANY_TENSOR:
        return ops.torch_launch_add2(c, a, b, n)
    _launch(c, a, b, n)
    increment_version(c)


add2.__doc__, torch_launch_add2.__doc__ = ops.add2.__doc__, ops.torch_launch_add2.__doc__


_library = torch.library.Library("add2", "FRAGMENT")  # adds to kernel/add2.cpp's


def _watching_keys() -> list[str]:
    """The names of all dispatch keys of this torch but those in _PLAIN_KEYS: a later torch's modes are among them.

    A key's type lists them, but only a kernel gets to see keys: so there is an operator for this question. It is called
    in a thread of its own, as a tracer may be at work on this one while it imports this file."""
    names = [*_KEYS_THAT_PYTHON_DOES_NOT_LIST]

    def note(keys) -> None:
        names.extend(type(keys.highestPriorityTypeId()).__members__)

    def has_kernels(name: str) -> bool:
        try:
            _library.impl("dispatch_keys", note, name)
        except RuntimeError:
            return False  # a mark, such as StartOfDenseBackends
        return True

    _library.define("dispatch_keys() -> ()")
    _library.impl("dispatch_keys", note, "CompositeExplicitAutograd", with_keyset=True)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(torch.ops.add2.dispatch_keys).result()
    return [name for name in names if name not in _PLAIN_KEYS and "Composite" not in name and has_kernels(name)]


for _key in _watching_keys():
    _library.impl("add2.plain", torch.ops.add2.add2.default, _key)
    _library.impl("torch_launch_add2.plain", torch.ops.add2.torch_launch_add2.default, _key)
