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
    # Without a GPU torch would compile for every GPU that it knows. One PTX serves all: the driver compiles the rest.
    ptx = not torch.cuda.is_available() and "TORCH_CUDA_ARCH_LIST" not in os.environ
    sources = ["decode_attention.cpp", "decode_attention_cpu.cpp"] + ["decode_attention_kernel.cu"] * with_cuda
    path = cpp_extension.load(
        "decode_attention",
        [str(HERE / name) for name in sources],
        extra_cflags=["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] + ["-DWITH_CUDA"] * with_cuda,
        extra_cuda_cflags=["-O3", "-std=c++17"] + ["-gencode=arch=compute_80,code=compute_80"] * ptx,
        extra_ldflags=["-Wl,--no-as-needed", "-ltorch"],
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
    keys and values must be dense and start at multiples of 16 bytes. int8 codes are round(x / scale), with scale =
    max(abs(x)) / 127 for each token and key head. No gradient. Call build() first.
    """
    return torch.ops.decode_attention.append(q, k, v, cos, sin, lengths, keys, values, key_scale, value_scale, counts)


@torch.compiler.disable  # torch.compile calls this to trace through it, and must not compile it by itself
def _without_gradient(name: str, written: slice, keyset, *args) -> Tensor:
    """Refuse gradients, call what lies below, and tell autograd which arguments have changed."""
    for x in (x for x in args if isinstance(x, Tensor)):
        if (torch.is_grad_enabled() and x.requires_grad) or unpack_dual(x).tangent is not None:
            raise RuntimeError("decode_attention has no gradient: use it under torch.no_grad(), or detach its inputs")
    changed = [x for x in args[written] if x is not None]
    if any(x.is_inference() for x in changed) and not torch.is_inference_mode_enabled():
        raise RuntimeError("decode_attention: the cache was made under torch.inference_mode(): append to it there, too")
    below = keyset.remove(keyset.highestPriorityTypeId())
    out = getattr(torch.ops.decode_attention, name).default.redispatch(below, *args)
    torch.autograd.graph.increment_version([x for x in changed if not x.is_inference()])
    return out


def register() -> None:
    """The operators' Python side: fake kernels, no gradient, no vmap."""
    for name, key, written in (("attend", "Autograd", slice(0)), ("append", "ADInplaceOrView", slice(6, 10))):
        LIBRARY.impl(name, partial(_without_gradient, name, written), key, with_keyset=True)

    def check(q, keys, values, key_scale, value_scale, **others) -> Tensor:
        """As the C++ side checks: otherwise the fake kernel would promise what the operator refuses."""
        dtype = keys.dtype if keys.dtype == torch.int8 else q.dtype
        others |= {"keys": (keys, dtype, q.shape[0], *keys.shape[1:]), "values": (values, dtype, *keys.shape)}
        others["q"] = (q, q.dtype, *q.shape[:-1], keys.shape[3])
        if dtype == torch.int8:
            others["key_scale"] = (key_scale, torch.float32, *keys.shape[:3])
            others["value_scale"] = (value_scale, torch.float32, *keys.shape[:3])
        for name, (x, dtype, *shape) in others.items():
            is_right = x is not None and (x.dtype, x.dim(), x.device) == (dtype, len(shape), q.device)
            for right in (is_right, *map(operator.eq, x.shape if is_right else (), shape)):  # a size may depend on data
                torch._check(right, partial(str, f"decode_attention: {name} is not {dtype}{shape} on {q.device}"))
        return q.new_empty(q.shape)

    @torch.library.register_fake("decode_attention::attend")
    def _(q, keys, values, lengths, scale=None, key_scale=None, value_scale=None):
        return check(q, keys, values, key_scale, value_scale, lengths=(lengths, torch.int32, q.shape[0]))

    @torch.library.register_fake("decode_attention::append")
    def _(q, k, v, cos, sin, lengths, keys, values, key_scale=None, value_scale=None, counts=None):
        new = (q.dtype, q.shape[0], keys.shape[1], *q.shape[2:])
        table = (torch.float32, cos.shape[0], keys.shape[3] // 2)
        others = {"k": (k, *new), "v": (v, *new), "cos": (cos, *table), "sin": (sin, *table)}
        for name, x in (("lengths", lengths), ("counts", lengths if counts is None else counts)):
            others[name] = (x, torch.int32, q.shape[0])
        return check(q, keys, values, key_scale, value_scale, **others)

    def no_vmap(info, in_dims, *args):
        raise RuntimeError("decode_attention has no vmap: its first dimension is a batch already")

    for name in ("attend", "append"):
        torch.library.register_vmap(f"decode_attention::{name}", no_vmap)


def main() -> None:
    build()
    for device in ["cpu"] + ["cuda"] * (torch.cuda.is_available() and has_toolkit()):
        q, keys, values = (torch.randn(size, device=device).half() for size in ((2, 8, 64), *[(2, 2, 100, 64)] * 2))
        lengths = torch.tensor([100, 37], dtype=torch.int32, device=device)
        mask = torch.arange(100, device=device) < lengths[:, None, None, None]
        right = F.scaled_dot_product_attention(q[:, :, None], keys, values, mask, enable_gqa=True)[:, :, 0]
        torch.testing.assert_close(attend(q, keys, values, lengths), right, rtol=0.01, atol=0.002)
        print(f"{device}: attention of 8 heads over 2 key heads is torch's, within rounding")


if __name__ == "__main__":
    main()
