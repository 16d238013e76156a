"""A C++ extension as the articles of 2021 made one: pybind11, autograd.Function, nn.Module, gradcheck.

    python3 examples/articles/articles.py

docs/articles.md compares it with the way of today. The first run compiles for some twenty seconds.
"""

import functools
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils.cpp_extension import load

HERE = Path(__file__).resolve().parent


@functools.cache
def module(with_cuda: bool | None = None):
    """Build and import the extension: with_cuda needs nvcc, and adds torch_launch_add2 (default: where a GPU is)."""
    with_cuda = torch.cuda.is_available() if with_cuda is None else with_cuda
    return load(
        name="articles_cuda" if with_cuda else "articles",
        sources=[f"{HERE}/binding.cpp"] + [f"{HERE}/kernel.cu"] * with_cuda,
        extra_cflags=["-DWITH_CUDA"] * with_cuda,
    )


class SigmoidFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = module().forward(x)
        ctx.save_for_backward(y)  # what backward() needs; autograd notices if it is changed until then
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # one gradient for each input of forward(), None where there is none
        (y,) = ctx.saved_tensors
        return module().backward(grad, y)


class Sigmoid(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return SigmoidFunction.apply(x)


def main() -> None:
    sigmoid = Sigmoid()
    x = torch.randn(4, 3, requires_grad=True)
    assert torch.equal(sigmoid(x), torch.sigmoid(x))
    print("the same values as torch.sigmoid")

    # gradcheck compares with (f(x + eps) - f(x - eps)) / 2 eps. In float32 a small eps drowns in rounding.
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(4, 3, dtype=dtype, requires_grad=True)
        for eps in (1e-3, 1e-4):
            passes = gradcheck(sigmoid, x, eps=eps, raise_exception=False)
            print(f"gradcheck in {str(dtype)[6:]} with eps {eps:g}: {'passes' if passes else 'fails'}")

    if torch.cuda.is_available():
        a, b, c = torch.randn(3, 1024, device="cuda")
        module().torch_launch_add2(c, a, b, 1024)
        torch.cuda.synchronize()
        assert torch.equal(c, a + b)
        print("torch_launch_add2: the same sums as torch")


if __name__ == "__main__":
    sys.exit(main())
