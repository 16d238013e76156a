"""A linear layer whose weight has 4-bit codes: a quarter of the bytes, for models that write one token at a time.

    python3 examples/int4_linear/int4_linear.py

builds it, checks it and times it. docs/12_int4_linear.md explains the kernel; bench.py measures it; model.py puts it in
place of the linear layers of a model.
"""

import functools
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.utils import benchmark, cpp_extension

HERE = Path(__file__).resolve().parent
LIBRARY = torch.library.Library("int4_linear", "FRAGMENT")
GROUP = 128  # columns that share a scale and a zero


def has_toolkit() -> bool:
    """Whether torch has CUDA, and a CUDA toolkit is where torch looks for it: $CUDA_HOME, or the nvcc on PATH."""
    home = cpp_extension.CUDA_HOME
    return bool(torch.version.cuda and home and Path(home, "include", "cuda_runtime.h").exists())


@functools.cache  # a second call must not register everything again
def build() -> None:
    """Compile and load the operator; for the CPU only where there is no CUDA toolkit. Call it once, before use."""
    with_cuda = has_toolkit()
    if torch.cuda.is_available() and not with_cuda:
        print(f"building for the CPU only: no CUDA toolkit in {cpp_extension.CUDA_HOME} (set CUDA_HOME to its folder)")
    # Without a GPU torch would compile for every GPU that it knows. One PTX serves all: the driver compiles the rest.
    ptx = not torch.cuda.is_available() and "TORCH_CUDA_ARCH_LIST" not in os.environ
    cpp_extension.load(
        "int4_linear",
        [str(HERE / "int4_linear.cpp")] + [str(HERE / "int4_linear_kernel.cu")] * with_cuda,
        extra_cflags=["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] + ["-DWITH_CUDA"] * with_cuda,
        extra_cuda_cflags=["-O3", "-std=c++17"] + ["-gencode=arch=compute_80,code=compute_80"] * ptx,
        extra_ldflags=["-Wl,--no-as-needed", "-ltorch"],
        is_python_module=False,
    )
    register()


def quantize(weight: Tensor, group_size: int = GROUP) -> tuple[Tensor, Tensor, Tensor]:
    """Round a weight [N, K] (float16 or bfloat16, N a multiple of 64, K of 128) to 4-bit codes: packed, scale, zero.

    128 columns of a row share a scale and a zero: weight = (code - zero) * scale, with codes from 0 to 15, rounded to
    nearest. packed: int32 [N/16, K/64, 32, 4], in the order in which tensor cores want it; scale: the weight's dtype,
    [K/128, N]; zero: uint8 [K/128, N]. On the weight's device; no gradient. Other sizes and dtypes: ValueError.
    """
    if weight.dim() != 2 or weight.shape[0] % 64 or weight.shape[1] % GROUP or not weight.numel():
        raise ValueError(f"int4_linear: weight is {list(weight.shape)}, expected [multiple of 64, multiple of 128]")
    if weight.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"int4_linear: weight is {weight.dtype}, expected float16 or bfloat16")
    if group_size != GROUP:
        raise ValueError(f"int4_linear: group_size is {group_size}, and the kernel has groups of {GROUP}")
    n, k = weight.shape
    groups = weight.detach().float().view(n, k // GROUP, GROUP)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)  # zero itself has a code
    smallest = torch.finfo(weight.dtype).tiny
    scale = ((high - low) / 15).clamp(min=smallest).to(weight.dtype)
    zero = (-low / scale).round().clamp(0, 15)
    codes = ((groups / scale[..., None]).round() + zero[..., None]).clamp(0, 15)
    return pack(codes.view(n, k)), scale.t().contiguous(), zero.to(torch.uint8).t().contiguous()


def pack(codes: Tensor) -> Tensor:
    """Codes from 0 to 15, [N, K], as int32 [N/16, K/64, 32, 4]: a lane's 16 bytes of mma.sync's fragments in a row.

    Row 16 a + 2 b + c and column 64 d + 32 e + 8 f + 4 h + 2 i + j go to tile a, chunk d, lane 4 b + f, word 2 e + h,
    as its code 4 j + 2 i + c.
    """
    n, k = codes.shape  # below: a, b, c | d, e, f, h, i, j
    codes = codes.to(torch.uint8).view(n // 16, 8, 2, k // 64, 2, 4, 2, 2, 2).permute(0, 3, 1, 5, 4, 6, 8, 7, 2)
    codes = codes.reshape(n // 16, k // 64, 32, 4, 8)
    words = sum(codes[..., i].long() << 4 * i for i in range(8))
    words = words << 3 | words >> 29  # turned left: what leaves 32 bits at one end comes in at the other
    return words.to(torch.uint32).view(torch.int32)


def dequantize(packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The weight [N, K] of codes from quantize(), in scale's dtype, without gradient. Call build() first."""
    return torch.ops.int4_linear.dequantize(packed, scale, zero)


def int4_linear(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return y = x W^T + bias, of shape [..., N], for x: [..., K] and a weight from quantize(). Call build() first.

    x, scale and bias: one dtype (float16 or bfloat16; under autocast x is cast to scale's) and device; else
    RuntimeError. Any strides of x. Sums are float32. x and bias have gradients, backward and forward; the weight has
    none, and a scale that requires one is refused. Two runs give the same bits. torch.vmap loops, and warns: give x a
    leading dimension instead.
    """
    if torch.is_autocast_enabled(x.device.type):
        x, bias = x.to(scale.dtype), None if bias is None else bias.to(scale.dtype)
    return torch.ops.int4_linear.int4_linear(x, packed, scale, zero, bias)


class Int4Linear(nn.Module):
    """nn.Linear with a weight in 4-bit codes. The codes are buffers: saved, loaded and moved, but not trained."""

    def __init__(self, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> "Int4Linear":
        """Round the weight of a float16 or bfloat16 layer; build() may come later, before the first call."""
        return cls(*quantize(linear.weight), linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return int4_linear(x, self.packed, self.scale, self.zero, self.bias)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(packed, scale, zero)
        return torch.ops.int4_linear.int4_linear.default.redispatch(below, x, packed, scale, zero, bias)

    @staticmethod
    def backward(ctx, dy: Tensor):
        dx = dy @ dequantize(*ctx.saved_tensors) if ctx.needs_input_grad[1] else None
        dbias = dy.sum(tuple(range(dy.dim() - 1))) if ctx.needs_input_grad[5] else None
        return None, dx, None, None, None, dbias


def _below(keyset, scale: Tensor):
    """The dispatch keys below Autograd: on to the C++ function."""
    if (torch.is_grad_enabled() and scale.requires_grad) or unpack_dual(scale).tangent is not None:
        raise RuntimeError("int4_linear: scale requires a gradient, and a 4-bit weight has none: detach it")
    return keyset.remove(keyset.highestPriorityTypeId())


# torch.library.register_autograd is shorter, but forward derivatives through it are silently zero.
@torch.compiler.disable  # torch.compile calls this to trace through it, and must not compile it by itself
def _autograd(keyset, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None) -> Tensor:
    below, tensors = _below(keyset, scale), (x,) if bias is None else (x, bias)
    if any(torch.func.debug_unwrap(each) is not each or unpack_dual(each).tangent is not None for each in tensors):
        # torch.func's grad, jvp, ..., or a forward derivative: slower, but torch has every derivative of this
        return F.linear(x, dequantize(packed, scale, zero), bias).to(x.dtype)  # autocast may have changed it
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return _Gradient.apply(below, x, packed, scale, zero, bias)
    return torch.ops.int4_linear.int4_linear.default.redispatch(below, x, packed, scale, zero, bias)


@torch.compiler.disable
def _dequantize_autograd(keyset, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return torch.ops.int4_linear.dequantize.default.redispatch(_below(keyset, scale), packed, scale, zero)


def register() -> None:
    """The operators' Python side: derivatives and fake kernels."""
    LIBRARY.impl("int4_linear", _autograd, "Autograd", with_keyset=True)
    LIBRARY.impl("dequantize", _dequantize_autograd, "Autograd", with_keyset=True)

    @torch.library.register_fake("int4_linear::int4_linear")
    def _(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None):
        for other in (packed, scale, zero, bias):
            torch._check(other is None or other.device == x.device, lambda: "int4_linear: inputs on several devices")
        torch._check(x.dtype == scale.dtype, lambda: f"int4_linear: x is {x.dtype}, expected {scale.dtype}")
        torch._check(x.shape[-1] == packed.shape[1] * 64, lambda: f"int4_linear: x is {x.shape}, packed {packed.shape}")
        return x.new_empty(*x.shape[:-1], packed.shape[0] * 16)

    @torch.library.register_fake("int4_linear::dequantize")
    def _(packed: Tensor, scale: Tensor, zero: Tensor):
        torch._check(packed.device == scale.device == zero.device, lambda: "int4_linear: inputs on several devices")
        return scale.new_empty(packed.shape[0] * 16, packed.shape[1] * 64)


def main() -> None:
    build()
    for device in ["cpu"] + ["cuda"] * (torch.cuda.is_available() and has_toolkit()):
        n, k = (512, 1024) if device == "cpu" else (8192, 8192)
        linear = nn.Linear(k, n, bias=False, dtype=torch.bfloat16, device=device).requires_grad_(False)
        layer = Int4Linear.from_linear(linear)
        x = torch.randn(1, k, dtype=torch.bfloat16, device=device)
        exact = x.double() @ dequantize(layer.packed, layer.scale, layer.zero).double().t()
        error = (layer(x) - exact).abs().max() / exact.abs().max()
        assert error < 2 * torch.finfo(x.dtype).eps
        print(f"{device}: a row of {k} times a weight of {n} x {k}, off by {error:.1e} of the largest value")
        for name, function in (("F.linear", linear), ("int4_linear", layer)):
            timer = benchmark.Timer("f(x)", globals={"f": function, "x": x}).blocked_autorange()
            print(f"  {name:<12}{timer.median * 1e6:10.1f} us")  # on a GPU with the launch; bench.py times kernels


if __name__ == "__main__":
    main()
