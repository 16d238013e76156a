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

# The kinds of keys that a call with dense tensors on a CPU or a CUDA device visits, while nothing watches and no
# derivative is needed.
_PLAIN_KEYS = {"Undefined", "Dense", "BackendSelect", "ADInplaceOrView", "AutogradFunctionality"}
_KEYS_THAT_PYTHON_DOES_NOT_LIST = ["Tracer", "DeferredInit", "Fake", "VmapMode"]  # the first is torch.jit.trace's


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


def _lead_back() -> None:
    """Register `plain` at all dispatch keys of this torch but those of plain tensors: a later torch's modes, too.

    A key's type lists the keys, but only a kernel gets to see one: so there is an operator for this question."""
    names = [*_KEYS_THAT_PYTHON_DOES_NOT_LIST, "CompositeExplicitAutograd"]  # the last is every other device

    def note(keys) -> None:
        all_keys = type(keys.highestPriorityTypeId())  # the kinds of keys first, then each kind on each device
        kinds = [name for name, key in all_keys.__members__.items() if key.value < all_keys.StartOfDenseBackends.value]
        names.extend(name for name in kinds if name not in _PLAIN_KEYS)

    _library.define("dispatch_keys() -> ()")
    _library.impl("dispatch_keys", note, "CompositeExplicitAutograd", with_keyset=True)
    torch.ops.add2.dispatch_keys()
    for name in names:
        _library.impl("add2.plain", torch.ops.add2.add2.default, name)
        _library.impl("torch_launch_add2.plain", torch.ops.add2.torch_launch_add2.default, name)


add2.__doc__, torch_launch_add2.__doc__ = ops.add2.__doc__, ops.torch_launch_add2.__doc__
_library = torch.library.Library("add2", "FRAGMENT")  # adds to kernel/add2.cpp's
with ThreadPoolExecutor(1) as _thread:  # one without modes: a tracer may be at work where this file is imported
    _ANY_TENSOR = _thread.submit(torch.empty, 0).result()  # not one of a call: vmap has no rule for unpack_dual
    try:
        _thread.submit(_lead_back).result()
    except RuntimeError:  # a torch with a key that nothing can be registered at
        add2, torch_launch_add2 = ops.add2, ops.torch_launch_add2
