"""A second operator, from the kernel to the gradient: y = relu(scale * (a + b)) in one kernel.

    python3 examples/fused/fused.py

builds it (jit), compares it with torch, checks its gradient and its contract, compiles it, and times it. If torch does
not find nvcc, set CUDA_HOME to its toolkit. docs/11_your_own.md walks through it.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils import benchmark, cpp_extension

HERE = Path(__file__).resolve().parent
WITH_CUDA = torch.cuda.is_available() and cpp_extension.CUDA_HOME is not None


def build() -> None:
    flags = ["-O3", "-DTORCH_TARGET_VERSION=0x020a000000000000"] + ["-DWITH_CUDA"] * WITH_CUDA
    sources = ["fused.cpp"] + ["fused_kernel.cu"] * WITH_CUDA
    cpp_extension.load(
        "fused",
        [str(HERE / name) for name in sources],
        extra_cflags=flags,
        # libtorch.so must be linked although no symbol asks for it: a weak one, as in fused.cpp, does not count.
        extra_ldflags=["-Wl,--no-as-needed", "-ltorch"],
        is_python_module=False,
    )


def add_scale_relu(a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """relu(scale * (a + b)). a, b: the same shape, dtype (float32, float64) and device; else RuntimeError."""
    return torch.ops.fused.add_scale_relu(a, b, scale)


def describe() -> None:
    """Tell torch the shape of the result and the gradient."""

    @torch.library.register_fake("fused::add_scale_relu")
    def _(a: Tensor, b: Tensor, scale: float) -> Tensor:
        torch._check(a.shape == b.shape, lambda: f"add_scale_relu: a is {[*a.shape]}, b {[*b.shape]}")
        return torch.empty_like(a, memory_format=torch.contiguous_format)

    def setup_context(ctx, inputs, output) -> None:
        ctx.scale = inputs[2]
        ctx.save_for_backward(output)  # its sign says where the gradient passes: one tensor instead of two

    def backward(ctx, grad: Tensor):
        (y,) = ctx.saved_tensors
        grad = grad * (y > 0) * ctx.scale  # torch's own operators, so it can be differentiated again
        return grad, grad, None  # scale is a number: it has no gradient

    torch.library.register_autograd("fused::add_scale_relu", backward, setup_context=setup_context)


def compare_times(device: str, n: int) -> None:
    """Print the median time of one call: the fused kernel, torch's three kernels, and torch.compile of those."""
    a, b = torch.randn(2, n, device=device)
    for name, function in (
        ("add_scale_relu", add_scale_relu),
        ("torch, three kernels", three_kernels),
        ("torch.compile", torch.compile(three_kernels)),
    ):
        timer = benchmark.Timer("function(a, b, 0.5)", globals={"function": function, "a": a, "b": b})
        print(f"  {name:<22}{timer.blocked_autorange(min_run_time=0.3).median * 1e6:>10.1f} us, {n} elements")


def three_kernels(a: Tensor, b: Tensor, scale: float) -> Tensor:
    return torch.relu(scale * (a + b))


def main() -> None:
    build()
    describe()
    for device in ["cpu"] + ["cuda"] * WITH_CUDA:
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
        compare_times(device, 2**26 if device == "cuda" else 2**20)
    try:
        add_scale_relu(torch.ones(3), torch.ones(4))
    except RuntimeError as error:
        print("refused, as it should be:", str(error).splitlines()[0])


if __name__ == "__main__":
    main()
