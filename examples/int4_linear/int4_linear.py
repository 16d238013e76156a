"""A linear layer whose weight has 4-bit codes: a quarter of the bytes, for models that write one token at a time.

    python3 examples/int4_linear/int4_linear.py

builds it, checks it and times it. docs/16_int4_linear.md explains the kernel; bench.py measures it. int4_packing.py
rounds a weight, int4_layer.py has the layer, int4_replace.py puts it in place of the linear layers of a model.
"""

import functools
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils import benchmark

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import operators
from int4_autograd import by_torch, register
from int4_layer import FEW_ROWS, Int4Linear
from int4_packing import GROUP, pack, quantize
from int4_replace import replace_linear_layers

HERE = Path(__file__).resolve().parent
__all__ = ["FEW_ROWS", "GROUP", "Int4Linear", "build", "dequantize", "int4_linear", "linear_after_norm"]
__all__ += ["linear_before_norm", "pack", "quantize", "replace_linear_layers"]


@functools.cache  # a second call must not register everything again
def build() -> str:
    """Compile and load the operator; for the CPU only where there is no CUDA toolkit. Returns the library's path."""
    sources = [HERE / name for name in ("int4_linear.cpp", "int4_linear_kernel.cu", "starts_half.cu")]
    path = operators.load("int4_linear", sources, operators.target_flags(oldest=80, hopper=True))
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
    if operators.is_tangent_hidden(x, bias):
        torch.ops.int4_linear.int4_linear(x, packed, scale, zero, bias, gated)  # for its checks
        return by_torch(x, packed, scale, zero, bias, gated)
    return torch.ops.int4_linear.int4_linear(x, packed, scale, zero, bias, gated)


def linear_before_norm(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return s, s * norm_weight and squares: s = residual + int4_linear(x, ...), with what linear_after_norm() needs.

    x: [..., K]; residual: [..., N]; norm_weight: [N]; any strides, one device, all bfloat16 (in float16 what is not
    normalized may be too large), else RuntimeError. squares: float32 [..., N / 16], sums over 16 neighbours of s each.
    y and s are rounded as if int4_linear() and an addition had made them. On a GPU one kernel for up to FEW_ROWS rows,
    two for more. No gradient, no vmap. Call build() first.
    """
    return torch.ops.int4_linear.linear_before_norm(x, packed, scale, zero, bias, residual, norm_weight)


def linear_after_norm(
    weighted: Tensor,
    squares: Tensor,
    eps: float,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """Return int4_linear(weighted / rms, packed, ...), with rms = sqrt(sum(squares) / K + eps) for each row.

    Both come from linear_before_norm(), maybe of another weight: together they are s + RMSNorm + product. For up to
    FEW_ROWS rows on a GPU one kernel multiplies the sums by 1 / rms, so `weighted` is rounded to bfloat16, and its
    quotient is not; otherwise both are. All else as for linear_before_norm() and int4_linear().
    """
    return torch.ops.int4_linear.linear_after_norm(weighted, squares, eps, packed, scale, zero, bias, gated)


def main() -> None:
    build()
    for device in ["cpu"] + ["cuda"] * (torch.cuda.is_available() and operators.has_toolkit()):
        n, k = (512, 1024) if device == "cpu" else (8192, 8192)
        linear = nn.Linear(k, n, bias=False, dtype=torch.bfloat16, device=device).requires_grad_(False)
        linear.weight.normal_()
        layer, x = Int4Linear.from_linear(linear), torch.randn(1, k, dtype=torch.bfloat16, device=device)
        exact = x.double() @ dequantize(*layer.buffers()).double().t()
        error = (layer(x) - exact).abs().max() / exact.abs().max()
        assert error < 2 * torch.finfo(x.dtype).eps
        print(f"{device}: a row of {k} times a weight of {n} x {k}, off by {error:.1e} of the largest value")
        change = (layer(x) - linear(x)).norm() / linear(x).norm()
        print(f"  rounding this random weight to 4 bits changed the result by {change:.0%} of its norm")
        for name, function in (("F.linear", linear), ("int4_linear", layer)):
            timer = benchmark.Timer("f(x)", globals={"f": function, "x": x}).blocked_autorange()
            print(f"  {name:<12}{timer.median * 1e6:10.1f} us")  # on a GPU with the launch; bench.py times kernels


if __name__ == "__main__":
    main()
