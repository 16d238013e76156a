"""A linear layer whose weight has 4-bit codes: a quarter of the bytes, for models that write one token at a time.

    python3 examples/int4_linear/int4_linear.py

builds it, checks it and times it. docs/12_int4_linear.md explains the kernel; bench.py measures it. int4_packing.py
rounds a weight, int4_layer.py has the layer, int4_replace.py puts it in place of the linear layers of a model.
"""

import functools
import os
from pathlib import Path

import torch
from int4_autograd import register
from int4_layer import Int4Linear
from int4_packing import GROUP, pack, quantize
from int4_replace import replace_linear_layers
from torch import Tensor, nn
from torch.utils import benchmark, cpp_extension

HERE = Path(__file__).resolve().parent
__all__ = ["GROUP", "Int4Linear", "build", "dequantize", "int4_linear", "pack", "quantize", "replace_linear_layers"]


def has_toolkit() -> bool:
    """Whether torch has CUDA, and a CUDA toolkit is where torch looks for it: $CUDA_HOME, or the nvcc on PATH."""
    home = cpp_extension.CUDA_HOME
    return bool(torch.version.cuda and home and Path(home, "include", "cuda_runtime.h").exists())


def architecture() -> list[str]:
    """Without a GPU torch would compile for all that it knows; on a H200 not for sm_90a, which alone has wgmma."""
    if "TORCH_CUDA_ARCH_LIST" in os.environ:
        return []
    if not torch.cuda.is_available():
        return ["-gencode=arch=compute_80,code=compute_80"]  # the driver compiles the rest
    return ["-gencode=arch=compute_90a,code=sm_90a"] * (torch.cuda.get_device_capability() == (9, 0))


@functools.cache  # a second call must not register everything again
def build() -> str:
    """Compile and load the operator; for the CPU only where there is no CUDA toolkit. Returns the library's path."""
    with_cuda = has_toolkit()
    if torch.cuda.is_available() and not with_cuda:
        print(f"building for the CPU only: no CUDA toolkit in {cpp_extension.CUDA_HOME} (set CUDA_HOME to its folder)")
    path = cpp_extension.load(
        "int4_linear",
        [str(HERE / "int4_linear.cpp")] + [str(HERE / "int4_linear_kernel.cu")] * with_cuda,
        extra_cflags=["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] + ["-DWITH_CUDA"] * with_cuda,
        extra_cuda_cflags=["-O3", "-std=c++17", *architecture()],
        extra_ldflags=["-Wl,--no-as-needed", "-ltorch"],
        extra_include_paths=[str(HERE.parent)],
        is_python_module=False,
    )
    register()
    return path


def dequantize(packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The weight [N, K] of codes from quantize(), in scale's dtype, without gradient. Call build() first."""
    return torch.ops.int4_linear.dequantize(packed, scale, zero)


def int4_linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None, gated: bool = False
) -> Tensor:
    """Return y = x W^T + bias, of shape [..., N], for x: [..., K] and a weight from quantize(). Call build() first.

    If gated, return silu(y[..., 0::2]) * y[..., 1::2] instead: Int4Linear.cat makes such a weight.
    x, scale and bias: one dtype (float16 or bfloat16; under autocast x is cast to scale's) and device; else
    RuntimeError. Any strides of x. Sums are float32. x and bias have gradients, backward and forward; the weight has
    none, and a scale that requires one is refused. Two runs give the same bits. torch.vmap loops, and warns: give x a
    leading dimension instead.
    """
    return torch.ops.int4_linear.int4_linear(x, packed, scale, zero, bias, gated)


def main() -> None:
    build()
    for device in ["cpu"] + ["cuda"] * (torch.cuda.is_available() and has_toolkit()):
        n, k = (512, 1024) if device == "cpu" else (8192, 8192)
        linear = nn.Linear(k, n, bias=False, dtype=torch.bfloat16, device=device).requires_grad_(False)
        layer, x = Int4Linear.from_linear(linear), torch.randn(1, k, dtype=torch.bfloat16, device=device)
        exact = x.double() @ dequantize(*layer.buffers()).double().t()
        error = (layer(x) - exact).abs().max() / exact.abs().max()
        assert error < 2 * torch.finfo(x.dtype).eps
        print(f"{device}: a row of {k} times a weight of {n} x {k}, off by {error:.1e} of the largest value")
        for name, function in (("F.linear", linear), ("int4_linear", layer)):
            timer = benchmark.Timer("f(x)", globals={"f": function, "x": x}).blocked_autorange()
            print(f"  {name:<12}{timer.median * 1e6:10.1f} us")  # on a GPU with the launch; bench.py times kernels


if __name__ == "__main__":
    main()
