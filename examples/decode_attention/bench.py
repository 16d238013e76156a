"""Time attend and append against torch's attention (flash, cuDNN) and FlashInfer. Needs a GPU.

    python3 examples/decode_attention/bench.py --json FILE

FlashInfer (`python3 -m pip install flashinfer-python`) takes part where it is installed. nvcc compiles it, once.
GPU time without launches, by CUDA graphs. The cache of a call comes from memory: calls rotate among caches of three
times the L2 cache. "exact" is torch on a cache of just the right length; "mask" is what a CUDA graph needs, as its
lengths live on the device. torch's other backends and FlexAttention were slower at all sizes that were tried.
"""

import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from decode_attention import append, attend, build, operators
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab import lesson  # of the workbench only what runs a lesson's programs,
from lab.bench import clock  # and a clock

warnings.filterwarnings("ignore", module="torch")  # a backend that cannot do something says so, and is left out
LLAMA = (32, 8, 128)  # heads, key heads, d
NAMED = [(1, 512), (1, 4096), (1, 32768), (1, 131072), (8, 4096), (64, 512), (64, 4096)]
POINTS = [(*point, *LLAMA) for point in NAMED]
POINTS += [(1, 4096, 32, 8, 64), (8, 4096, 32, 32, 128), (1, 4096, 64, 8, 128), (8, 4096, 16, 1, 128)]
POINTS += [(1, 1300, *LLAMA), (3, 10000, *LLAMA), (20, 700, *LLAMA), (12, 3000, *LLAMA), (64, 1111, *LLAMA)]
rotate_sets = partial(lesson.rotate_sets, caches=3)


def make(batch: int, tokens: int, heads: int, key_heads: int, d: int) -> tuple:
    """Arguments of attend: normal data, a cache that is full."""
    q = torch.randn(batch, heads, d, device="cuda", dtype=torch.bfloat16)
    keys, values = (torch.randn(batch, key_heads, tokens, d, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    return q, keys, values, torch.full((batch,), tokens, device="cuda", dtype=torch.int32)


def quantized(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> tuple:
    """The same with codes of int8, and a scale for each token and key head."""
    scales = [x.float().abs().amax(-1) / 127 for x in (keys, values)]
    codes = [(x / scale[..., None]).round().to(torch.int8) for x, scale in zip((keys, values), scales, strict=True)]
    return q, *codes, lengths, None, *scales


def time_calls(function: Callable, inputs: list[tuple]) -> float:
    """Median microseconds of a call."""
    return clock.gpu([partial(function, *x) for x in inputs]).median_us


def torchs(backend: SDPBackend) -> Callable:
    def call(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q[:, :, None], keys, values, mask, enable_gqa=True)

    return call


flash, cudnn, exact = map(torchs, (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH))


def relative_error(x: Tensor, right: Tensor) -> float:
    return ((x.double() - right).norm() / right.norm()).item()


def paged(cache: Tensor, size: int) -> Tensor:
    """The same keys or values, [batch, key heads, tokens, d], in pages: [pages, key heads, size, d]."""
    padded = F.pad(cache, (0, 0, 0, -cache.shape[2] % size))
    return padded.unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1).contiguous()


def flashinfers(point: tuple, inputs: list[tuple]) -> Iterator[tuple[str, Callable, list[tuple]]]:
    """FlashInfer's kernels, where it is installed, without and with tensor cores: on a cache in pages of 16 and of 64,
    planned for this point, and for one sequence on the cache as it is."""
    try:
        import flashinfer
    except ImportError:
        return
    batch, tokens, heads, key_heads, d = point
    for size in (16, 64):
        pages = [(q, (paged(keys, size), paged(values, size))) for q, keys, values, _ in inputs]
        starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * math.ceil(tokens / size)
        order = torch.arange(len(pages[0][1][0]), dtype=torch.int32, device="cuda")
        last = torch.full((batch,), (tokens - 1) % size + 1, dtype=torch.int32, device="cuda")
        for has_tensor_cores in (False, True):
            workspace = torch.zeros(2**27, dtype=torch.uint8, device="cuda")
            planned = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=has_tensor_cores)
            with contextlib.suppress(RuntimeError):  # it has no kernel for so many heads for each key head
                planned.plan(starts, order, last, heads, key_heads, d, size, q_data_type=torch.bfloat16)
                yield f"FlashInfer, pages of {size}{', tensor cores' * has_tensor_cores}", planned.run, pages
    if batch == 1:
        alone = [(q[0], keys[0], values[0]) for q, keys, values, _ in inputs]
        for has_tensor_cores in (False, True):
            single = partial(flashinfer.single_decode_with_kv_cache, kv_layout="HND", use_tensor_cores=has_tensor_cores)
            yield f"FlashInfer{', tensor cores' * has_tensor_cores}", single, alone


def contestants(point: tuple, inputs: list[tuple]) -> Iterator[tuple[str, Callable, list[tuple]]]:
    batch, tokens, *_ = point
    cut = [(q, keys, values) for q, keys, values, _ in inputs]
    used = torch.ones(batch, 1, 1, tokens, dtype=torch.bool, device="cuda")
    yield "flash, exact", flash, cut
    yield "cuDNN, exact", cudnn, cut
    yield "cuDNN, mask", cudnn, [(*each, used) for each in cut]
    yield from flashinfers(point, inputs)


def measure(point: tuple, peak: float) -> dict:
    batch, tokens, _, key_heads, d = point
    size = 4 * batch * key_heads * tokens * d
    named = dict(zip(("batch", "tokens", "heads", "key_heads", "d"), point, strict=True))
    torch.cuda.empty_cache()
    inputs = rotate_sets(partial(make, *point), size)
    right = exact(*(x[:1].float() for x in inputs[0][:3]))[:, :, 0]
    errors = [relative_error(attend(*x)[:1], right) for x in (inputs[0], quantized(*inputs[0]))]
    torch.testing.assert_close(errors, [0.0, 0.0], rtol=0, atol=0.015)  # before a time counts
    timers = {name: partial(time_calls, *call) for name, *call in contestants(point, inputs)}
    timers["attend"] = partial(time_calls, attend, inputs)
    row = lesson.compare(named | {"floor_us": size / peak * 1e-3}, timers, "attend")
    timers.clear()  # they hold inputs
    del inputs[max(2, len(inputs) // 2) :]
    return row | {"attend, int8": time_calls(attend, [quantized(*x) for x in inputs * 2])}


def measure_step(tokens: int) -> dict:
    """append and attend for a new token: alone, and one after the other."""
    heads, key_heads, d = LLAMA
    after = torch.full((1,), tokens, device="cuda", dtype=torch.int32)

    def make_step() -> tuple:
        qkv = torch.randn(1, 1, heads + 2 * key_heads, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        cos, sin = torch.randn(2, tokens, d // 2, device="cuda").unbind()
        _, keys, values, lengths = make(1, tokens, *LLAMA)
        return *qkv.split((heads, key_heads, key_heads), 1), cos, sin, lengths - 1, keys, values

    def step(*x) -> Tensor:
        return attend(append(*x)[:, :, 0], *x[-2:], after)

    inputs = rotate_sets(make_step, 4 * key_heads * tokens * d)
    row = {"what": "step", "tokens": tokens, "append": time_calls(append, inputs)}
    return row | {"append and attend": time_calls(step, inputs)}


def measure_error(outliers: int) -> dict:
    """Relative error of the output against float64, in bfloat16 and with a cache of int8: normal data, 1024 tokens, of
    which two columns of 128 are so many times larger."""
    q, keys, values, lengths = make(4, 1024, *LLAMA)
    for x in (keys, values):
        x[..., ::64] *= outliers
    right = exact(q.double(), keys.double(), values.double())[:, :, 0]
    found = {
        "torch, bfloat16": flash(q, keys, values)[:, :, 0],
        "attend, bfloat16": attend(q, keys, values, lengths),
        "attend, int8": attend(*quantized(q, keys, values, lengths)),
    }
    return {"what": "error", "outliers": outliers} | {name: relative_error(x, right) for name, x in found.items()}


def measure_all(where: dict) -> Iterator[dict]:
    yield from map(measure_step, (512, 4096))
    yield from map(measure_error, (1, 10))
    yield from (measure(point, where["peak_gb_per_s"]) for point in POINTS)


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), partial(operators.is_ready, build), measure_all)
