"""Host cost of each layer between Python and one C++ function that adds: ways.py --host-cost.

The function takes contiguous float32 tensors of the same shape and device: a real operator would check that.
"""

import importlib.util
import operator
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.cpp_extension import load

from lab.bench import clock, host_cost

ROOT = Path(__file__).resolve().parents[2]
TIMES = 100  # calls from C++ in one sample
WITHOUT_GRADIENT = ("stable operator", "define, impl")  # no Autograd kernel: torch only warns in backward

with_cuda = torch.cuda.is_available()
sources = ["examples/ways/layers.cpp", "kernel/add2_cpu.cpp"] + ["kernel/add2_kernel.cu"] * with_cuda
module = load(
    "ways_layers",
    [f"{ROOT}/{name}" for name in sources],
    extra_include_paths=[f"{ROOT}/include"],
    extra_cflags=["-O3"] + ["-DWITH_CUDA"] * with_cuda,
    with_cuda=with_cuda,
)
ops = torch.ops.ways_layers


def plain(a: Tensor, b: Tensor) -> Tensor:
    return ops.plain.default(a, b)


def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
    return grad, grad


# Autograd key in Python: the pattern of the starter. keys says where the dispatcher goes on.
class Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below, a, b):
        return ops.key.default.redispatch(below, a, b)

    @staticmethod
    def backward(ctx, grad):
        return None, grad, grad


def autograd_kernel(keys, a, b):
    below = keys.remove(keys.highestPriorityTypeId())
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return Gradient.apply(below, a, b)
    return ops.key.default.redispatch(below, a, b)


library = torch.library.Library("ways_layers", "FRAGMENT")
library.impl("key", autograd_kernel, "Autograd", with_keyset=True)
torch.library.register_autograd("ways_layers::registered", backward)
for name in ("defined", "defined_registered"):
    torch.library.define(f"ways_layers::{name}", "(Tensor a, Tensor b) -> Tensor")
    torch.library.impl(f"ways_layers::{name}", ("cpu", "cuda"), plain)
torch.library.register_autograd("ways_layers::defined_registered", backward)
custom = torch.library.custom_op("ways_layers::custom", plain, mutates_args=())
custom.register_autograd(backward)


def with_function(call: Callable) -> Callable:
    """A function with autograd.Function around it, which is entered only where a gradient is wanted."""
    methods = {"forward": staticmethod(lambda ctx, a, b: call(a, b)), "backward": staticmethod(backward)}
    function = type("Add", (torch.autograd.Function,), methods)

    def add(a, b):
        if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
            return function.apply(a, b)
        return call(a, b)

    return add


def ways() -> dict[str, Callable]:
    """The ways, each a function of a and b, that can run here."""
    found = {
        "a + b": operator.add,
        "stable operator": ops.plain.default,
        "stable operator, autograd.Function": with_function(plain),
        "stable operator, Autograd key in Python": ops.key.default,
        "stable operator, register_autograd": ops.registered.default,
        "define, impl": ops.defined.default,
        "define, impl, register_autograd": ops.defined_registered.default,
        "custom_op": custom,
        "pybind11, autograd.Function": with_function(module.add),
    }
    if with_cuda and importlib.util.find_spec("triton"):
        found["triton_op"] = importlib.import_module("triton_add").add
    if with_cuda and importlib.util.find_spec("tvm_ffi"):
        found["tvm-ffi, autograd.Function"] = with_function(importlib.import_module("tvm_add").plain)
    return found


def measure(device: torch.device) -> list[dict]:
    """Median microseconds of each way, without and with a gradient. All take their turn, but for the C++ function."""
    a, b = torch.randn(2, host_cost.N, device=device)
    leaf = a.clone().requires_grad_()
    timed = {}
    for name, add in ways().items():
        timed[name, "us"] = partial(add, a, b)
        is_right = torch.equal(add(a, b), a + b)
        if name not in WITHOUT_GRADIENT:
            timed[name, "grad_us"] = partial(add, leaf, b)
            is_right &= torch.equal(torch.autograd.grad(add(leaf, b), leaf, b)[0], b)
        if not is_right:
            raise SystemExit(f"{name}: the sum or its gradient differs from torch's")
    in_cpp = partial(ops.add_often.default, a, b, TIMES)
    timing = clock.repeat([lambda: [clock.span(in_cpp, device, after=False) / TIMES]], warm_up=3)[0]
    rows = {"C++ function, called from C++": {"us": timing.median_us}}
    for (name, column), us in host_cost.medians(timed, device).items():
        rows.setdefault(name, {})[column] = us
    return [{"call": name} | row for name, row in rows.items()]
