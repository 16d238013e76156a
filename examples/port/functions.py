"""What stands in Python around a port's operators: a kept autograd.Function, one around an operator that writes,
results without a gradient, sizes that depend on data. docs/port_python.md explains each.

    python3 examples/port/functions.py    # calls each, and prints what torch.compile and autograd refuse

The operators are in Python here, to be short. torch treats those of a C++ library in the same way.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import Function

_library = torch.library.Library("port", "DEF")
ops = torch.ops.port


def _define(schema: str, function: Callable, fake: Callable) -> None:
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"port::{name}", fake)


# A kept Function: its forward and backward call operators instead of pybind11's functions.
_define("cube(Tensor x) -> Tensor", lambda x: x**3, torch.empty_like)
_define("cube_backward(Tensor grad, Tensor x) -> Tensor", lambda grad, x: 3 * grad * x**2, lambda grad, x: grad.clone())


class Cube(Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return ops.cube(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return ops.cube_backward(grad, x)


# The second derivative: the gradient of the backward operator.
def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _second(ctx, grad_grad: Tensor) -> tuple[Tensor, Tensor]:
    grad, x = ctx.saved_tensors
    return 3 * x**2 * grad_grad, 6 * x * grad * grad_grad


torch.library.register_autograd("port::cube_backward", _second, setup_context=_save)


# An operator that writes into a tensor with a gradient. mark_dirty tells autograd that `out` is another value now.
def _add_into(out: Tensor, x: Tensor) -> None:
    out += x


_define("add_into(Tensor(a!) out, Tensor x) -> ()", _add_into, lambda out, x: None)


class AddInto(Function):
    @staticmethod
    def forward(ctx, out: Tensor, x: Tensor) -> Tensor:
        ops.add_into(out, x)
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


def add_into(out: Tensor, x: Tensor) -> Tensor:
    """Add x to out, in place. Differentiable. Go on with the result instead of `out`."""
    return AddInto.apply(out, x)


# An operator that writes a buffer and returns a new tensor.
def _count_and_double(calls: Tensor, x: Tensor) -> Tensor:
    calls += 1
    return 2 * x


_define(
    "count_and_double(Tensor(a!) calls, Tensor x) -> Tensor", _count_and_double, lambda calls, x: torch.empty_like(x)
)


# Two results; the second one, a statistic, has no gradient.
_define(
    "halve(Tensor x) -> (Tensor, Tensor)",
    lambda x: (x / 2, x.abs().amax()),
    lambda x: (torch.empty_like(x), x.new_empty(())),
)


def _mark(ctx, inputs, output) -> None:
    ctx.mark_non_differentiable(output[1])


torch.library.register_autograd("port::halve", lambda ctx, grad, _: grad / 2, setup_context=_mark)


# A size that depends on data. The caller computes it: the operator's argument is a SymInt.
_define(
    "histogram(Tensor index, SymInt n) -> Tensor",
    lambda index, n: torch.bincount(index, minlength=n),
    lambda index, n: index.new_empty(n),
)


def histogram(index: Tensor) -> Tensor:
    """Count how often each number occurs: as many counts as the largest number requires."""
    n = index.max().item() + 1
    torch._check(n >= 0)
    return ops.histogram(index, n)


# A size that only the operator knows.
def _fake_positions(x: Tensor) -> Tensor:
    n = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(n, dtype=torch.int64)


_define("positions(Tensor x) -> Tensor", lambda x: x.nonzero().flatten(), _fake_positions)


def made_in_a_function() -> type[Function]:
    """A class as an old extension makes them, one for each set of constants."""

    class Made(Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return ops.cube(x)

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            return grad

    return Made


def twice(function: Callable, x: Tensor) -> Tensor:
    """The second derivative of a sum of function(x)."""
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


def main() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    compiled = torch.compile(Cube.apply, fullgraph=True)
    print("Cube", compiled(x).tolist(), "second derivative", twice(Cube.apply, x).tolist())
    print("add_into", torch.autograd.grad(add_into(2 * x, x).sum(), x)[0].tolist())
    calls = torch.zeros((), dtype=torch.int64)
    print("count_and_double", ops.count_and_double(calls, x.detach()).tolist(), "calls", calls.item())
    print("halve", [y.requires_grad for y in ops.halve(x)])
    print("histogram", torch.compile(histogram, fullgraph=True)(torch.tensor([0, 3, 3])).tolist())
    print("positions", torch.compile(ops.positions, fullgraph=True)(torch.tensor([0.0, 5.0])).tolist())
    refused = {
        "second derivative of compiled code": lambda: twice(compiled, x),
        "a class made in compiled code": lambda: torch.compile(lambda x: made_in_a_function().apply(x), fullgraph=True)(
            x
        ),
        "a registered gradient of an operator that writes": lambda: torch.library.register_autograd(
            "port::count_and_double", lambda ctx, grad: (None, 2 * grad)
        ),
    }
    for name, call in refused.items():
        try:
            call()
        except Exception as error:  # torch's own words, without its advice
            print(f"{name}: {str(error).strip().splitlines()[0]}")
        else:
            raise SystemExit(f"{Path(__file__).name}: torch no longer refuses {name}")


if __name__ == "__main__":
    main()
