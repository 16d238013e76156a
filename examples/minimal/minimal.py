"""The smallest whole operator: c = a + b, on a CPU and a GPU. (nvcc not found? Set CUDA_HOME to its toolkit.)"""

from pathlib import Path

import torch
from torch.autograd import forward_ad
from torch.utils.cpp_extension import CUDA_HOME, load


def add(a, b):
    if any(forward_ad.unpack_dual(x).tangent is not None for x in (a, b)):
        raise NotImplementedError("add has no forward derivative")
    return torch.ops.minimal.add(a, b)


def fake(a, b):
    torch._check(a.device == b.device, lambda: "add: a and b differ in device")
    return torch.empty_like(a)


cuda = torch.cuda.is_available() and CUDA_HOME is not None
sources = [str(Path(__file__).with_name(name)) for name in ["minimal.cpp"] + ["minimal_kernel.cu"] * cuda]
load("minimal", sources, extra_cflags=["-O3"] + ["-DUSE_CUDA"] * cuda, is_python_module=False)
torch.library.register_fake("minimal::add", fake)
torch.library.register_autograd("minimal::add", lambda ctx, grad: (grad, grad))
a, b, grad = (torch.randn(300, 7, device="cuda" if cuda else "cpu", requires_grad=True) for _ in range(3))
c, expected = torch.compile(add, fullgraph=True)(a, b), a + b
torch.testing.assert_close(c, expected, rtol=0, atol=0)
torch.testing.assert_close(torch.autograd.grad(c, (a, b), grad), torch.autograd.grad(expected, (a, b), grad))
print(f"{a.device}: the same as torch")
