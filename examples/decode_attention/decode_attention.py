"""Attention for one token, over a cache of 16 or 8 bits; and the step before it, which fills that cache.

    python3 examples/decode_attention/decode_attention.py

builds the operators and checks them. docs/17_decode_attention.md explains the kernels; bench.py measures them.
"""

import functools
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import operators

HERE = Path(__file__).resolve().parent
CACHE = slice(6, 10)  # of append()'s and step()'s arguments: those that they write


@functools.cache  # a second call must not register everything again
def build() -> str:
    """Compile and load the operators; for the CPU only where there is no CUDA toolkit. Returns the library's path."""
    sources = [HERE / f"decode_attention{end}" for end in (".cpp", "_cpu.cpp", "_kernel.cu")]
    path = operators.load("decode_attention", sources, operators.target_flags(oldest=80))
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


def step(
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
    scale: float | None = None,
) -> Tensor:
    """append() of one token for each row, and attend() with it. On a GPU in one kernel. Returns [batch, heads, d].

    q: [batch, heads, d]; k, v: [batch, key heads, d]; any strides. lengths do not count the new token. All else as for
    append() and attend(). The result is within rounding of theirs, and the cache has the same bits but for how the
    compiler fuses multiplications with additions in the rotation.
    """
    return torch.ops.decode_attention.step(q, k, v, cos, sin, lengths, keys, values, key_scale, value_scale, scale)


def _refuse(*arguments) -> None:
    raise RuntimeError("decode_attention has no gradient: use it under torch.no_grad(), or detach its inputs")


@torch.compiler.disable  # as in register_derivatives
def _in_place(operator, keys, *args) -> Tensor:
    """Refuse what autograd cannot follow, append, and tell autograd which arguments have changed."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if torch.compiler.is_compiling():  # has_derivative() of others leaves aliases, which inductor miscounts
        tensors = [x for x in tensors if torch.func.debug_unwrap(x) is not x]
    if is_recorded or any(map(operators.has_derivative, tensors)):
        _refuse()
    changed = [x for x in args[CACHE] if x is not None]
    if any(x.is_inference() for x in changed) and not torch.is_inference_mode_enabled():
        raise RuntimeError("decode_attention: the cache was made under torch.inference_mode(): append to it there, too")
    below = keys.remove(keys.highestPriorityTypeId())
    out = operator.redispatch(below, *args)
    torch.autograd.graph.increment_version([x for x in changed if not x.is_inference()])
    return out


def _with_negative(operator, keys, *args) -> Tensor:
    """Refuse a cache that is a negative view (torch._neg_view, parts of complex tensors); resolve other such arguments.

    In place of torch's own kernel for negative views, which expects that an operator returns what it writes: in
    torch 2.10 to 2.14 (MathBitsFallback.h) it ends in an INTERNAL ASSERT.
    """
    if any(x is not None and x.is_neg() for x in args[CACHE]):
        raise RuntimeError("decode_attention: the cache is a negative view: append to cache.resolve_neg()")
    args = [x.resolve_neg() if isinstance(x, Tensor) else x for x in args]
    below = keys.remove(keys.highestPriorityTypeId())
    return operator.redispatch(below, *args)


def _like_q(q: Tensor, *others) -> Tensor:
    """The fake kernel of both; decode_attention.cpp has the checks."""
    operators.expect_one_device("decode_attention", q, *(x for x in others if isinstance(x, Tensor)))
    return q.new_empty(q.shape)


def _no_vmap(info, in_dims, *args) -> None:
    raise RuntimeError("decode_attention has no vmap: its first dimension is a batch already")


def register() -> None:
    """The operators' Python side: fake kernels, no gradient, no vmap."""
    operators.register_derivatives(torch.ops.decode_attention.attend.default, _refuse, _refuse)
    library = operators.library("decode_attention")
    for name in ("append", "step"):
        operator = getattr(torch.ops.decode_attention, name).default
        library.impl(name, functools.partial(_in_place, operator), "ADInplaceOrView", with_keyset=True)
        library.impl(name, functools.partial(_with_negative, operator), "Negative", with_keyset=True)
    for name in ("decode_attention::attend", "decode_attention::append", "decode_attention::step"):
        torch.library.register_fake(name, _like_q)
        torch.library.register_vmap(name, _no_vmap)


def main() -> None:
    build()
    for device in ["cpu"] + ["cuda"] * (torch.cuda.is_available() and operators.has_toolkit()):
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
