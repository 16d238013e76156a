"""What works around faults of torch. Each part names the versions that have the fault. Once they need not be supported,
it can be deleted here and where its name is used: nothing else depends on it."""

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_launch = torch.ops.add2.torch_launch_add2.default

if torch.__version__ < "2.13":

    def is_compiling() -> bool:
        """torch.compiler.is_compiling(), or another tracer records a graph. With torch 2.10 and 2.11 the former says no
        in a function that the dispatcher calls while torch.compile traces, and a forward derivative was lost."""
        return torch.compiler.is_compiling() or get_proxy_mode() is not None

else:
    is_compiling = torch.compiler.is_compiling


def _launch_on_negative(c: Tensor, a: Tensor, b: Tensor, n: int) -> None:
    """An argument is a view with a minus sign that torch has still to apply.

    torch 2.10 to 2.14: torch's own kernel for such tensors expects that an operator returns the tensor that it writes.
    For this one, which returns nothing, it ends in "Expected Tensor but got None". And torch.compile's default backend
    forgets the sign of a function's argument, even in `c.copy_(a)`, so there c is refused.
    """
    if is_compiling() and c.is_neg():
        raise RuntimeError("add2: c has a minus sign still to be applied, which torch.compile may lose; pass a clone()")
    plain = c.resolve_neg()
    _launch(plain, a.resolve_neg(), b.resolve_neg(), n)
    if plain is not c:
        c.copy_(plain)


_library = torch.library.Library("add2", "FRAGMENT")
_library.impl("torch_launch_add2", _launch_on_negative, "Negative")
