"""A linear layer whose weight has 4-bit codes: a quarter of the bytes, for models that write one token at a time.

    python3 examples/int4_linear/int4_linear.py

builds it, checks it and times it. docs/12_int4_linear.md explains the kernel; bench.py measures it; model.py puts it in
place of the linear layers of a model.
"""

import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from int4_autograd import register
from torch import Tensor, nn
from torch.utils import benchmark, cpp_extension

HERE = Path(__file__).resolve().parent
GROUP = 128  # columns that share a scale and a zero


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


def quantize(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round a weight [N, K] (float16 or bfloat16, N and K multiples of 64) to 4-bit codes: packed, scale, zero.

    128 columns of a row share a scale and a zero: weight = (code - zero) * scale, with codes from 0 to 15, rounded to
    nearest. The last group may have only 64. packed: int32 [N/64, K/64, 4, 32, 4], in the order in which tensor cores
    want it; scale: the weight's dtype, [groups, N]; zero: uint8 [groups, N]. On the weight's device; no gradient.
    Other sizes and dtypes: ValueError.
    """
    _check_size("weight", weight)
    if weight.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"int4_linear: weight is {weight.dtype}, expected float16 or bfloat16")
    n, k = weight.shape
    groups = F.pad(weight.detach().float(), (0, -k % GROUP)).view(n, -1, GROUP)
    # The largest and the smallest scale must be numbers of the dtype: 15 scales are finite, and one is not 0.
    limits = torch.finfo(weight.dtype)
    edge = limits.max * (1 - limits.eps)
    low, high = groups.amin(2).clamp(-edge, 0), groups.amax(2).clamp(0, edge)  # zero itself has a code
    if weight.device.type != "meta" and (low + high).isnan().any():
        raise ValueError("int4_linear: weight has a NaN, expected numbers")
    scale = (high / 15 - low / 15).clamp(min=limits.smallest_normal * limits.eps).to(weight.dtype)
    zero = (-low / scale).round().clamp(0, 15)
    most = (limits.max / scale.float()).floor()[..., None]  # so many scales are still finite
    codes = ((groups / scale[..., None]).round().clamp(-most, most) + zero[..., None]).clamp(0, 15)
    return pack(codes.view(n, -1)[:, :k], scale, zero)


def _check_size(name: str, matrix: Tensor) -> None:
    if matrix.dim() != 2 or matrix.shape[0] % 64 or matrix.shape[1] % 64 or not matrix.numel():
        raise ValueError(f"int4_linear: {name} is {list(matrix.shape)}, expected multiples of 64: [N, K]")


def pack(codes: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, K], scale and zero [N, groups], of any origin, as int4_linear() wants them: see quantize().

    Codes and zeros are whole numbers from 0 to 15 of any dtype; else ValueError. In packed, row 16 a + 2 b + c and
    column 64 d + 16 e + 8 h + 2 t + j go to chunk d, tile a, lane 4 b + t, word e, as its code 4 j + 2 h + c: so a lane
    has its fragments of four products in a row, and 64 rows are one piece of memory.
    """
    _check_size("codes", codes)
    n, k = codes.shape  # below: a, b, c | d, e, h, t, j
    for name, affine in (("scale", scale), ("zero", zero)):
        if affine.shape != (n, -(-k // GROUP)):
            raise ValueError(f"int4_linear: {name} is {list(affine.shape)}, expected {[n, -(-k // GROUP)]}")
    for what, numbers in (("code", codes), ("zero", zero)):
        right = (numbers >= 0) & (numbers <= 15) & (numbers == numbers.to(torch.uint8))
        if codes.device.type != "meta" and not right.all():
            raise ValueError(f"int4_linear: a {what} is {numbers[~right][0].item()}, expected a whole number, 0 to 15")
    codes = codes.to(torch.uint8).view(n // 64, 4, 8, 2, k // 64, 4, 2, 4, 2).permute(0, 4, 1, 2, 7, 5, 8, 6, 3)
    codes = codes.reshape(n // 64, k // 64, 4, 32, 4, 8)
    words = sum(codes[..., i].long() << 4 * i for i in range(8))
    words = words << 3 | words >> 29  # turned left: what leaves 32 bits at one end comes in at the other
    return words.to(torch.uint32).view(torch.int32), scale.t().contiguous(), zero.to(torch.uint8).t().contiguous()


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


class Int4Linear(nn.Module):
    """nn.Linear with a weight in 4-bit codes. The codes are buffers: saved, loaded and moved, but not trained.

    The bias is trained if it requires a gradient. `gated` is not saved: load codes into a layer made with the same.
    """

    def __init__(
        self, packed: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None, gated: bool = False
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = packed.shape[1] * 64, packed.shape[0] * 64 // (2 if gated else 1)
        self.gated = gated
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> "Int4Linear":
        """Round the weight of a float16 or bfloat16 layer; build() may come later, before the first call."""
        return cls(*quantize(linear.weight), linear.bias).train(linear.training)

    @classmethod
    def cat(cls, layers: Sequence["Int4Linear"], gated: bool = False) -> "Int4Linear":
        """Several layers of one x as one: y is theirs, one after the other. So q, k and v of a model are one call.

        If gated, two layers of one size, after build(): y is silu(first(x)) * second(x), as for a model's gate and up.
        """
        found = {(each.in_features, each.scale.dtype, each.scale.device, each.gated) for each in layers}
        if len(found) != 1 or layers[0].gated:
            raise ValueError(f"int4_linear: layers must be alike and not gated, found {list(found)}")
        sizes = [layer.out_features for layer in layers]
        if gated and sizes != sizes[:1] * 2:
            raise ValueError(f"int4_linear: gated needs two layers with as many out_features, found {sizes}")
        bias = None
        if given := [layer.bias for layer in layers if layer.bias is not None]:
            zeros = layers[0].scale.new_zeros
            biases = [zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
            bias = torch.stack(biases, 1).flatten() if gated else torch.cat(biases)
            bias = bias.detach().requires_grad_(any(each.requires_grad for each in given))  # also under no_grad
        if not gated:
            weights = zip(*((layer.packed, layer.scale, layer.zero) for layer in layers), strict=True)
            parts = [torch.cat(each, axis) for axis, each in zip((0, 1, 1), weights, strict=True)]
        else:  # the rows alternate: a thread of the kernel has two neighbours, and needs no other thread for its result
            one, none = torch.ones_like(layers[0].scale), torch.zeros_like(layers[0].zero)
            gates = [(dequantize(each.packed, one, none), each.scale.t(), each.zero.t()) for each in layers]
            parts = pack(*(torch.stack(pair, 1).flatten(0, 1) for pair in zip(*gates, strict=True)))
        return cls(*parts, bias, gated).train(layers[0].training)

    def forward(self, x: Tensor) -> Tensor:
        return int4_linear(x, self.packed, self.scale, self.zero, self.bias, self.gated)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return sizes + ", gated=True" * self.gated


def replace_linear_layers(model: nn.Module, skip: str | Iterable[str] = ()) -> dict[str, str]:
    """Put an Int4Linear in place of each nn.Linear of a model, except those in skip, or that do not fit.

    skip: a name or several. Returns the names of the layers that stay as they are, each with the reason. A layer with
    several names is still one layer afterwards. The model changes only after all weights have been rounded.
    """
    skip = {skip} if isinstance(skip, str) else set(skip)
    layers = {name: each for name, each in model.named_modules(remove_duplicate=False) if isinstance(each, nn.Linear)}
    if lost := skip - layers.keys():
        raise ValueError(f"int4_linear: no linear layer is called {', '.join(sorted(lost))}")
    users = {
        weight: name
        for name, module in model.named_modules()
        if not isinstance(module, nn.Linear)
        for weight in module.parameters(recurse=False)
    }
    kept: dict[nn.Module, str] = {}
    new: dict[nn.Module, Int4Linear] = {}
    for name, layer in layers.items():
        parent = model.get_submodule(name.rpartition(".")[0])
        hooks = [key for key, value in vars(layer).items() if key.endswith("_hooks") and value]
        if name in skip:
            kept[layer] = "named in skip"
        elif not name:
            kept[layer] = "it is the model itself"
        elif type(layer) is not nn.Linear:
            kept[layer] = f"a {type(layer).__name__} may be used in other ways than nn.Linear"
        elif hooks:  # weight_norm and prune use them, too
            kept[layer] = f"it has {hooks[0].strip('_')}, which would be lost"
        elif isinstance(parent, nn.TransformerEncoderLayer):
            kept[layer] = "nn.TransformerEncoderLayer reads its weight"
        elif layer.weight in users:
            kept[layer] = f"it shares its weight with {users[layer.weight]}"
        elif layer not in kept and layer not in new:
            try:
                new[layer] = Int4Linear.from_linear(layer)
            except ValueError as error:
                kept[layer] = str(error)
    for name, layer in layers.items():
        if layer not in kept:
            model.set_submodule(name, new[layer])
    return {name: kept[layer] for name, layer in layers.items() if layer in kept}


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
