"""The three limits of torch.library.register_autograd, each shown by running into it, on a CPU."""

import timeit
from pathlib import Path

import torch
from torch.utils.cpp_extension import load

load("limits", [str(Path(__file__).with_name("minimal.cpp"))], extra_cflags=["-O3"], is_python_module=False)
add, a, b = torch.ops.minimal.add, torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)


def microseconds() -> float:
    return min(timeit.repeat(lambda: add(a, b), number=1000, repeat=20)) * 1e3


before = microseconds()
torch.library.register_autograd("minimal::add", lambda ctx, grad: (grad, grad))
print(f"1. a call that needs no gradient: {before:.1f} us before, {microseconds():.1f} us after register_autograd")

try:
    torch.func.grad(lambda a: add(a, b).sum())(a)
except RuntimeError as error:
    print("2. torch.func.grad:", str(error)[:69], "...")

_, tangent = torch.func.jvp(add, (a, b), (a, b))
print("3. torch.func.jvp:", tangent.tolist(), "instead of", (a + b).tolist())
