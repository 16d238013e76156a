"""Attention for one token, over a cache of 16 or 8 bits; and the step before it, which fills that cache.

    python3 examples/decode_attention/decode_attention.py

builds both operators and checks them. docs/13_decode_attention.md explains the kernels; bench.py measures them.
"""

import functools
import operator
import os
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
LIBRARY = torch.library.Library("decode_attention", "FRAGMENT")


def has_toolkit() -> bool:
    """Whether torch has CUDA, and a CUDA toolkit is where torch looks for it: $CUDA_HOME, or the nvcc on PATH."""
    home = cpp_extension.CUDA_HOME
    return bool(torch.version.cuda and home and Path(home, "include", "cuda_runtime.h").exists())


@functools.cache  # a second call must not register everything again
def build() -> str:
    """Compile and load the operators; for the CPU only where there is no CUDA toolkit. Returns the library's path."""
    with_cuda = has_toolkit()
    if torch.cuda.is_available() and not with_cuda:
        print(f"building for the CPU only: no CUDA toolkit in {cpp_extension.CUDA_HOME} (set CUDA_HOME to its folder)")
    # Without a GPU torch's load() finds no GPU to compile for: an IndexError. One PTX serves all later GPUs.
    ptx = not torch.cuda.is_available() and "TORCH_CUDA_ARCH_LIST" not in os.environ
    sources = ["decode_attention.cpp", "decode_attention_cpu.cpp"] + ["decode_attention_kernel.cu"] * with_cuda
    path = cpp_extension.load(
        "decode_attention",
        [str(HERE / name) for name in sources],
        extra_cflags=["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] + ["-DWITH_CUDA"] * with_cuda,
        extra_cuda_cflags=["-O3", "-std=c++17"] + ["-gencode=arch=compute_80,code=compute_80"] * ptx,
        extra_ldflags=["-Wl,--no-as-needed", "-ltorch"],
        extra_include_paths=[str(HERE.parent)],
        is_python_module=False,
    )
    register()
    return path


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    scale: float | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> Tensor:
    """Return softmax(q keys^T scale) values for one query of each row: [batch, heads, d], in q's dtype.

    q: [batch, heads, d], d 64 or 128, float16 or bfloat16 (on a CPU also float32). keys, values: [batch, key heads,
    capacity, d] of q's dtype, any strides (rows that are not dense and aligned to 16 bytes are copied first), 1 to 16
    heads for a key head. Or int8, with key_scale and value_scale: float32 [batch, key heads, capacity]. lengths: int32
    [batch], on the same device: only so many tokens of a row count; they may grow from one replay of a CUDA graph to
    the next. 0 gives zeros; more than the capacity is the capacity. scale: 1 / sqrt(d) if None. Sums are float32; two
    runs give the same bits. No gradient. Anything else raises a RuntimeError. Call build() first.
    """
    if isinstance(scale, Tensor):  # torch would convert it, and drop its gradient
        raise RuntimeError("decode_attention: scale is a Tensor, expected a number: pass scale.item()")
    return torch.ops.decode_attention.attend(q, keys, values, lengths, scale, key_scale, value_scale)


def append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    lengths: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    counts: Tensor | None = None,
) -> Tensor:
    """Rotate q and k by their positions, write k and v into the cache, return the rotated q. In one kernel.

    q: [batch, heads, tokens, d]; k, v: [batch, key heads, tokens, d]; any strides. cos, sin: float32 [positions, d/2],
    as many positions as the capacity or more; the halves of d are rotated, as transformers does it. lengths: int32
    [batch], tokens that are in the cache already: token i gets position lengths + i, and lengths stay as they are (all
    layers share them). counts: int32 [batch], how many of the tokens count; the others are not written, their q is 0.
    Nothing is written at or past the capacity. keys, values, key_scale, value_scale: as for attend(), but the rows of
    keys and values must be dense and start at multiples of 16 bytes, and no argument may share memory with these
    four. int8 codes are round(x * (127 / max)), the scale is max / 127, with max = max(abs(x)) of each token and
    key head. No gradient. Call build() first.
    """
    return torch.ops.decode_attention.append(q, k, v, cos, sin, lengths, keys, values, key_scale, value_scale, counts)


@torch.compiler.disable  # torch.compile calls this to trace through it, and must not compile it by itself
def _without_gradient(name: str, written: slice, keyset, *args) -> Tensor:
    """Refuse gradients, call what lies below, and tell autograd which arguments have changed."""
    for x in (x for x in args if isinstance(x, Tensor)):
        if (torch.is_grad_enabled() and x.requires_grad) or unpack_dual(x).tangent is not None:
            raise RuntimeError("decode_attention has no gradient: use it under torch.no_grad(), or detach its inputs")
    changed = [x for x in args[written] if x is not None]
    if any(x.is_neg() for x in changed):
        raise RuntimeError("decode_attention: the cache is a negative view: append to cache.resolve_neg()")
    if any(x.is_inference() for x in changed) and not torch.is_inference_mode_enabled():
        raise RuntimeError("decode_attention: the cache was made under torch.inference_mode(): append to it there, too")
    below = keyset.remove(keyset.highestPriorityTypeId())
    out = getattr(torch.ops.decode_attention, name).default.redispatch(below, *args)
    torch.autograd.graph.increment_version([x for x in changed if not x.is_inference()])
    return out


def check(q, keys, values, lengths, key_scale, value_scale, *new) -> Tensor:
    """Refuse what the C++ side refuses: it cannot read symbolic sizes. new: append's k, v, cos, sin, counts."""

    def need(is_right: bool | torch.SymBool, text: str) -> None:
        torch._check(is_right, partial(str, f"decode_attention: {text}"))  # no `if`: a size may depend on data

    def expect(dtype: torch.dtype, *shape: int | torch.SymInt, **tensors: Tensor | None) -> None:
        for name, x in tensors.items():
            need(x is not None, f"{name} is None, expected a tensor")
            text = f"{name} is {x.dtype}{[*x.shape]} on {x.device}, expected {dtype}{[*shape]} on {q.device}"
            is_right = (x.dtype, x.dim(), x.device) == (dtype, len(shape), q.device)
            for right in (is_right, *map(operator.eq, x.shape if is_right else (), shape)):
                need(right, text)

    dims = 4 if new else 3
    is_right = q is not None and keys is not None and (q.dim(), keys.dim()) == (dims, 4)
    need(is_right, f"expected tensors, q with {dims} dimensions and keys with 4")
    (batch, heads, *tokens, _), (_, key_heads, capacity, d) = q.shape, keys.shape
    is_int8, group, limit = keys.dtype == torch.int8, heads // torch.sym_max(key_heads, 1), 2**30
    dtypes = (torch.float16, torch.bfloat16) + (torch.float32,) * (q.device.type != "cuda")
    need(q.dtype in dtypes, f"{q.dtype} q on {q.device}: expected float16 or bfloat16 (on a CPU also float32)")
    need((d == 64) | (d == 128), f"keys are {d} wide, expected 64 or 128")
    text = f"q has {heads} heads and keys {key_heads}, expected 1 to 16 heads for each key head"
    need((group >= 1) & (group <= 16) & (group * key_heads == heads), text)
    has_scales = key_scale is not None, value_scale is not None
    need(has_scales == (is_int8, is_int8), "expected key_scale and value_scale with a cache of int8, and only then")
    for is_small in (capacity < limit, batch * heads < limit // 64, q.numel() < limit * d * heads):
        need(is_small, "a size is too large for the kernel's 32-bit indices")
    expect(q.dtype, batch, heads, *tokens, d, q=q)
    expect(keys.dtype if is_int8 else q.dtype, batch, key_heads, capacity, d, keys=keys, values=values)
    expect(torch.int32, batch, lengths=lengths)
    if is_int8:
        expect(torch.float32, batch, key_heads, capacity, key_scale=key_scale, value_scale=value_scale)
    if new:
        k, v, cos, sin, counts = new
        positions = torch.sym_max(capacity, cos.shape[0] if cos is not None and cos.dim() == 2 else 0)
        expect(q.dtype, batch, key_heads, *tokens, d, k=k, v=v)
        expect(torch.float32, positions, d // 2, cos=cos, sin=sin)
        expect(torch.int32, batch, counts=lengths if counts is None else counts)
        for x in (keys, values, key_scale, value_scale)[: 4 if is_int8 else 2]:
            step = 16 // x.element_size() if x.dim() == 4 else 1
            text = f"the cache has strides {x.stride()} and offset {x.storage_offset()}: it is expanded, or has"
            strides = zip(x.shape[:3], x.stride()[:3], strict=True)
            rows = [(n == 1) | ((stride != 0) & (stride % step == 0)) for n, stride in strides]
            for right in (*rows, x.stride()[3:] in ((), (1,)), x.storage_offset() % step == 0):
                need(right, f"{text} no dense rows that start at multiples of 16 bytes")
        is_shared = keys is values or (is_int8 and key_scale is value_scale)
        need(not is_shared, "keys and values, or their scales, share memory: allocate a tensor for each")
    return q.new_empty(q.shape)


def register() -> None:
    """The operators' Python side: fake kernels, no gradient, no vmap."""
    for name, key, written in (("attend", "Autograd", slice(0)), ("append", "ADInplaceOrView", slice(6, 10))):
        LIBRARY.impl(name, partial(_without_gradient, name, written), key, with_keyset=True)

    @torch.library.register_fake("decode_attention::attend")
    def _(q, keys, values, lengths, scale=None, key_scale=None, value_scale=None):
        return check(q, keys, values, lengths, key_scale, value_scale)

    @torch.library.register_fake("decode_attention::append")
    def _(q, k, v, cos, sin, lengths, keys, values, key_scale=None, value_scale=None, counts=None):
        return check(q, keys, values, lengths, key_scale, value_scale, k, v, cos, sin, counts)

    def no_vmap(info, in_dims, *args):
        raise RuntimeError("decode_attention has no vmap: its first dimension is a batch already")

    for name in ("attend", "append"):
        torch.library.register_vmap(f"decode_attention::{name}", no_vmap)


def main() -> None:
    build()
    for device in ["cpu"] + ["cuda"] * (torch.cuda.is_available() and has_toolkit()):
        torch.manual_seed(0)  # int8 passes the bound below only with most numbers
        q, k, v = torch.randn(2, 12, 100, 64).half().to(device).split((8, 2, 2), 1)
        turn = torch.randn(100, 32, dtype=torch.complex64).to(device)
        lengths = torch.tensor([100, 37], dtype=torch.int32, device=device)
        mask = torch.arange(100, device=device) < lengths[:, None, None, None]
        both = (torch.complex(*x.float().chunk(2, -1)) * turn for x in (q, k))
        both = (torch.cat((x.real, x.imag), -1) for x in both)
        right = F.scaled_dot_product_attention(*both, v.float(), mask, enable_gqa=True)[:, :, -1]
        for dtype in (torch.float16, torch.int8):
            cache = [torch.zeros(k.shape, dtype=dtype, device=device) for _ in "kv"]
            scales = [torch.zeros(2, 2, 100, device=device) for _ in "kv"] if dtype == torch.int8 else []
            last = append(q, k, v, turn.real, turn.imag, 0 * lengths, *cache, *scales)[:, :, -1]
            out = attend(last, *cache, lengths, None, *scales)
            torch.testing.assert_close(out.float(), right, rtol=0.01, atol=0.02 if scales else 0.002)
        print(f"{device}: attention of 8 heads over 2 key heads, rotated, is torch's within rounding; with int8, too")


if __name__ == "__main__":
    main()
