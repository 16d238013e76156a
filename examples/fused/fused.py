"""A second operator, from the kernel to the gradient: y = relu(scale * (a + b)) in one kernel.

    python3 examples/fused/fused.py

builds it (jit), compares it with torch, checks its gradient and its contract, and compiles it. docs/your-own.md walks
through it.
"""

import os
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from lab.build import toolchain  # noqa: E402  (where nvcc is; without the workbench: set CUDA_HOME yourself)


def build() -> None:
    with_cuda = toolchain.find_nvcc() is not None
    flags = ["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] + ["-DWITH_CUDA"] * with_cuda
    with toolchain.in_build_environment():
        if with_cuda:
            cpp_extension.CUDA_HOME = str(toolchain.cuda_root(toolchain.find_nvcc()))
        cpp_extension.load(
            "fused",
            [str(HERE / "fused.cpp")] + [str(HERE / "fused_kernel.cu")] * with_cuda,
            extra_cflags=flags,
            extra_cuda_cflags=[] if "TORCH_CUDA_ARCH_LIST" in os.environ else [toolchain.PTX_FOR_ALL],
            extra_ldflags=["-Wl,--no-as-needed", "-ltorch"],
            is_python_module=False,
        )


def add_scale_relu(a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """relu(scale * (a + b)). a, b: the same shape, dtype (float32, float64) and device; else RuntimeError."""
    return torch.ops.fused.add_scale_relu(a, b, scale)


def describe() -> None:
    """What torch must know beside the kernels."""

    @torch.library.register_fake("fused::add_scale_relu")
    def _(a: Tensor, b: Tensor, scale: float) -> Tensor:
        torch._check(a.shape == b.shape, lambda: f"add_scale_relu: a is {[*a.shape]}, b {[*b.shape]}")
        return torch.empty_like(a, memory_format=torch.contiguous_format)

    def setup_context(ctx, inputs, output) -> None:
        ctx.scale = inputs[2]
        ctx.save_for_backward(output)  # its sign says where the gradient passes: one tensor instead of two

    def backward(ctx, grad: Tensor):
        (y,) = ctx.saved_tensors
        grad = grad * (y > 0) * ctx.scale  # of torch's own operators, so it can be differentiated again
        return grad, grad, None  # scale is a number: it has no gradient

    torch.library.register_autograd("fused::add_scale_relu", backward, setup_context=setup_context)


def main() -> None:
    build()
    describe()
    for device in ["cpu"] + ["cuda"] * (torch.cuda.is_available() and toolchain.find_nvcc() is not None):
        a, b = torch.randn(2, 300, 7, device=device)
        expected = torch.relu(0.5 * (a + b))
        assert torch.equal(add_scale_relu(a, b, 0.5), expected)
        assert torch.equal(add_scale_relu(a.t(), b.t(), 0.5), expected.t())
        x, y = (torch.randn(5, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in "ab")
        assert torch.autograd.gradcheck(add_scale_relu, (x, y, 0.5))
        assert torch.autograd.gradgradcheck(add_scale_relu, (x, y, 0.5))
        torch.library.opcheck(torch.ops.fused.add_scale_relu.default, (x, y, 0.5))
        compiled = torch.compile(lambda a, b: add_scale_relu(a, b, 2.0) + 1, fullgraph=True)
        assert torch.equal(compiled(a, b), torch.relu(2 * (a + b)) + 1)
        print(f"{device}: the same as torch; the gradient, the contract and the compiled call are right")
    try:
        add_scale_relu(torch.ones(3), torch.ones(4))
    except RuntimeError as error:
        print("refused, as it should be:", str(error).splitlines()[0])


if __name__ == "__main__":
    main()
