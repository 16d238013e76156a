"""examples/decode_attention: values against float64, and the plan of a launch."""

import ctypes
import itertools
import math
import operator
import random
import runpy
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lab import toolchain

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "decode_attention"
either_cache = pytest.mark.parametrize("int8", [False, True])


@pytest.fixture(scope="module")
def lib(lesson):
    return lesson("decode_attention")


def integers(numbers, device):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def quantize(x):
    scale = x.float().abs().amax(-1) / 127
    return (x.float() / scale[..., None]).round().to(torch.int8), scale


def make(lengths, heads=8, key_heads=2, capacity=40, d=64, dtype=torch.float16, device="cpu", int8=False, size=1):
    """The arguments of attend(), and the right output. Past the lengths the cache is NaN. size: of keys and values."""
    torch.manual_seed(heads + capacity + d)
    q = (torch.randn(len(lengths), heads, d) / size).to(device, dtype)
    both = [(torch.randn(len(lengths), key_heads, capacity, d) * size).to(device, dtype) for _ in "kv"]
    lengths = integers(lengths, device)
    is_used = torch.arange(capacity, device=device) < lengths[:, None, None, None]
    unused = ~is_used[:, 0].expand(both[0].shape[:3])
    exact, cache, scales = both, [x.masked_fill(unused[..., None], math.nan) for x in both], []
    if int8:
        cache, scales = zip(*map(quantize, both), strict=True)
        exact = [x * scale[..., None].double() for x, scale in zip(cache, scales, strict=True)]
        scales = [None, *(x.masked_fill(unused, math.nan) for x in scales)]
    q_keys_values = (x.double() for x in (q[:, :, None], *exact))
    right = F.scaled_dot_product_attention(*q_keys_values, is_used, enable_gqa=True)
    return (q, *cache, lengths, *scales), right[:, :, 0].nan_to_num()


def by_token(x):
    """The same numbers, in memory as [batch, capacity, key heads, ...]."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if isinstance(x, torch.Tensor) and x.dim() > 2 else x


@pytest.mark.parametrize("d", [64, 128])
@either_cache
def test_values(lib, d, int8, device):
    """Lengths around a tile of 16, 0, past the capacity; as many heads as key heads, and 16 for one; any layout."""
    dtypes = (torch.float16, torch.bfloat16) + (torch.float32,) * (device == "cpu")
    sizes = ((8, 2), (4, 4), (16, 1), (24, 2), (7, 1))
    capacities = (1, 17, 200) if device == "cpu" else (1, 17, 200, 1000, 5003)
    cases = [(each, [0, 1, 15, 16, 17, each - 1, each, each + 3, -1]) for each in capacities]
    if device == "cuda":  # few units of 320 to 1280 KB: clusters, or a second kernel
        cases += [(each, [0, each, -1]) for each in (2500, 5000)]
    for dtype, (heads, key_heads), (capacity, lengths) in itertools.product(dtypes, sizes, cases):
        arguments, right = make(lengths, heads, key_heads, capacity, d, dtype, device, int8)
        out = lib.attend(*arguments)
        assert out.dtype == dtype
        assert not out[[0, -1]].any()
        error = (out.double() - right).norm() / right.norm()
        assert error < torch.finfo(dtype).eps, (dtype, heads, key_heads, capacity)
        assert torch.equal(out, lib.attend(*map(by_token, arguments)))


def minus_infinity(batch, tokens, device, heads=8, key_heads=2):
    """q, keys and values, finite, whose scores are -infinity for every other tile of 16 tokens, for the first half of
    a row, for all but the last token, or for all."""
    torch.manual_seed(tokens)
    q, *both = (torch.randn(batch, n, each, 128) for n, each in ((heads, 1), (key_heads, tokens), (key_heads, tokens)))
    q[..., 0], token = 4.0, torch.arange(tokens)
    both[0][..., 0] = 0
    masks = token // 16 % 2 == 0, token < tokens // 2, token < tokens - 1, token >= 0
    for row in range(batch):
        both[0][row, :, masks[row % len(masks)], 0] = -3e38
    return [x.bfloat16().to(device) for x in (q, *both)]


def expected(q, keys, values):
    """By float32 scores, in which -3e38 * 4 is -infinity; NaN where all are."""
    scores = (q.float() @ keys.float().mT.repeat_interleave(q.shape[1] // keys.shape[1], 1)) / 128**0.5
    return scores.double().softmax(-1) @ values.double().repeat_interleave(q.shape[1] // keys.shape[1], 1)


@pytest.mark.parametrize("tokens", [64, 512, 4096])
def test_scores_of_minus_infinity(lib, tokens, device):
    """Their weight is 0, also where a warp meets nothing else in its first tile; NaN if all are so, as in torch."""
    for batch in (1, 2, 4, 64) if device == "cuda" else (4,):
        q, keys, values = minus_infinity(batch, tokens, device)
        right = expected(q, keys, values)[:, :, 0]
        assert right.isnan().any() == (batch > 3 or tokens == 16)  # the rows where all are
        out = lib.attend(q[:, :, 0], keys, values, integers([tokens] * batch, device))
        torch.testing.assert_close(out.double(), right, rtol=0.02, atol=0.01, equal_nan=True)


@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["q", "keys", "values"])
def test_infinity(lib, place, infinity, device):
    """As by the formula in float64: among values it comes out, as each weight is above 0; among the others NaN does."""
    (q, keys, values, lengths), _ = make([40, 17], device=device)
    inputs = [q, keys.nan_to_num(), values.nan_to_num()]
    inputs[place].view(-1)[::3] = infinity
    is_used = torch.arange(40, device=device) < lengths[:, None, None, None]
    both = (x.double().where(is_used.mT, 0) for x in inputs[1:])
    right = F.scaled_dot_product_attention(inputs[0].double()[:, :, None], *both, is_used, enable_gqa=True)[:, :, 0]
    assert right.isnan().all() if place < 2 else (right == infinity).any()
    torch.testing.assert_close(lib.attend(*inputs, lengths).double(), right, rtol=0.01, atol=0.01, equal_nan=True)


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_int8_of_extreme_sizes(lib, size, device):
    """Large queries, keys and values stay finite, tiny ones do not vanish, although halves are multiplied."""
    arguments, right = make([40, 33], dtype=torch.bfloat16, device=device, int8=True, size=size)
    assert (lib.attend(*arguments).double() - right).norm() < 0.01 * right.norm()


def test_int8_against_what_was_quantized(lib, device):
    (q, k, v, lengths), right = make([1024, 1024], capacity=1024, d=128, dtype=torch.bfloat16, device=device)
    cache = [torch.empty_like(k, dtype=torch.int8) for _ in "kv"]
    scales = [torch.empty(2, 2, 1024, device=device) for _ in "kv"]
    one, zero = torch.ones(1024, 64, device=device), torch.zeros(1024, 64, device=device)  # no rotation
    lib.append(q[:, :, None].expand(-1, -1, 1024, -1), k, v, one, zero, 0 * lengths, *cache, *scales)
    out = lib.attend(q, *cache, lengths, None, *scales)
    assert (out.double() - right).norm() < 0.015 * right.norm()


def rotate(x, cos, sin):
    low, high = x.float().chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


@either_cache
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "shifted"])
def test_append(lib, int8, shift, device):
    """Slices of one qkv tensor; tokens past `counts` and past the capacity are not written."""
    for d, tokens, dtype in itertools.product((64, 128), (1, 5), (torch.float16, torch.bfloat16)):
        torch.manual_seed(d + tokens)
        qkv = torch.randn(3, tokens, 8 * d + shift).to(device, dtype)[..., shift:].unflatten(-1, (8, d)).transpose(1, 2)
        q, k, v = qkv.split((4, 2, 2), 1)
        cos, sin = torch.randn(2, 20, d // 2, device=device)
        lengths, counts = integers([0, 15, 9], device), integers([5, 5, 2], device)
        cache = [torch.zeros(3, 2, 17, d, dtype=torch.int8 if int8 else dtype, device=device) for _ in "kv"]
        scales = [torch.zeros(3, 2, 17, device=device) for _ in "kv"] if int8 else [None, None]
        version = cache[0]._version
        out = lib.append(q, k, v, cos, sin, lengths, *cache, *scales, counts)
        assert cache[0]._version > version
        found = [x if scale is None else x * scale[..., None] for x, scale in zip(cache, scales, strict=True)]
        each = torch.arange(tokens, device=device)
        at, is_valid = lengths[:, None] + each, each < counts[:, None]
        rotated = [rotate(x, cos[at][:, None], sin[at][:, None]) for x in (q, k)]
        torch.testing.assert_close(out.float(), rotated[0] * is_valid[:, None, :, None], rtol=0.01, atol=0.01)
        row, token = (is_valid & (at < 17)).nonzero(as_tuple=True)
        for x, new in zip(found, (rotated[1], v.float()), strict=True):
            true = torch.zeros(x.shape, device=device)
            true[row, :, at[row, token]] = new[row, :, token]
            step = true.abs().amax(-1, keepdim=True) / 127 if int8 else true.abs() * 0.01
            assert (abs(x - true) <= 0.51 * step).all()


@either_cache
def test_step(lib, int8, device):
    """As append() and then attend(), at each place of a tile; and where there is no room, or no place, for a token."""
    for d, heads, (dtype, capacity, counts) in itertools.product(
        (64, 128),
        (2, 8, 24),
        (
            (torch.bfloat16, 40, [0, 7, 15, 16, 31, 32, 39, 40, -1]),
            (torch.float16, 3000, [2999, 1024, 77]),  # on a GPU clusters; with 9000 a second kernel
            (torch.float16, 9000, [8999]),
        ),
    ):
        torch.manual_seed(d + heads)
        rows = len(counts)
        q, k, v = torch.randn(rows, heads + 4, d).to(device, dtype).split((heads, 2, 2), 1)
        cos, sin = torch.randn(2, capacity + 1, d, device=device)[..., : d // 2]  # rows with a gap after each
        lengths = integers(counts, device)
        caches = [[torch.randn(rows, 2, capacity, d, device=device).mul(40 if int8 else 1) for _ in "kv"]]
        caches[0] = [x.to(torch.int8 if int8 else dtype) for x in caches[0]]
        caches[0] += [torch.rand(rows, 2, capacity, device=device) for _ in "kv"] if int8 else []
        caches.append([x.clone() for x in caches[0]])
        found = lib.step(q, k, v, cos, sin, lengths, *caches[0])
        one = (x[:, :, None] for x in (q, k, v))
        rotated = lib.append(*one, cos, sin, lengths, *caches[1])[:, :, 0]
        scales = caches[1][2:]
        expected = lib.attend(rotated, *caches[1][:2], lengths + 1, None, *scales)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02, equal_nan=True)
        for x, y in zip(*caches, strict=True):
            torch.testing.assert_close(x.float(), y.float(), rtol=0.01, atol=1 if x.dtype == torch.int8 else 0.001)


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    """plan.h: units, tokens, bytes per token, multiprocessors, bytes of shared memory, clusters or not -> the plan."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.cpp").write_text("""
        #include "plan.h"
        extern "C" int plan_of(int64_t units, int64_t capacity, int row, int processors, int shared, bool clusters) {
          const Plan plan = make_plan(units, capacity, row, processors, shared, clusters);
          return plan.warps | plan.splits << 8 | plan.is_cluster << 16;
        }""")
    command = [toolchain.host_compiler(), "-O1", "-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{FOLDER}"]
    command += [f"-I{FOLDER.parent}", folder / "plan.cpp", "-o", folder / "plan.so"]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(folder / "plan.so").plan_of
    function.argtypes = [ctypes.c_int64, ctypes.c_int64, *[ctypes.c_int] * 3, ctypes.c_bool]

    def plan(*sizes):
        packed = function(*sizes)
        return packed & 255, packed >> 8 & 255, bool(packed >> 16)  # warps, splits, is_cluster

    return plan


def test_plan(plan_of):
    """At sizes of other GPUs, too: no block without work, blocks for all multiprocessors, clusters where they exist."""
    units, capacities = (1, 7, 8, 9, 33, 64, 100, 131, 500, 4096), (0, 1, 129, 1300, 4000, 10**6)
    gpus = itertools.product((1, 28, 108, 132, 170), (48, 99, 163, 227), (0, 1))
    for (p, kb, has_clusters), u, capacity, row in itertools.product(gpus, units, capacities, (64, 256)):
        warps, splits, is_cluster = plan_of(u, capacity, row, p, kb * 1024, has_clusters)
        assert 1 <= warps <= min(8, (kb - 12) // 25)
        assert 1 <= splits <= 64
        assert splits in (2, 4, 8) if is_cluster else (splits - 1) * warps * 16 < max(capacity, 1)
        assert has_clusters or not is_cluster
        if capacity > 4096 and splits < 64 and splits * warps * 16 < capacity:
            assert u * splits >= p / 2  # most multiprocessors have work
    warps, splits, _ = plan_of(128, 1024, 256, 170, 99 * 1024, True)  # 16 x 1024 on an RTX 5090
    assert warps == 3  # those that fit; they are too few to leave 42 multiprocessors idle
    assert 128 * splits >= 170


# Units and KB of keys for each, on both sides of the thresholds that were measured on an H200; warps, splits, cluster.
PLANS = {
    # clusters: short rows, of many units and of few; from which length on a block has 8 warps; where they end
    (8, 128): (8, 4, True),
    (8, 129): (4, 8, True),
    (7, 128): (4, 8, True),
    (16, 128): (8, 4, True),
    (17, 128): (4, 4, True),
    (8, 384): (4, 8, True),
    (8, 385): (8, 8, True),
    (9, 385): (4, 8, True),
    (8, 1024): (8, 8, True),
    (8, 1025): (4, 33, False),
    (9, 512): (4, 8, True),
    (9, 513): (4, 29, False),
    (1, 1024): (8, 8, True),
    (44, 513): (4, 6, False),
    (45, 513): (8, 2, True),
    (66, 128): (8, 2, True),
    # more units than half of the multiprocessors: one block for each, or two waves
    (67, 128): (8, 1, False),
    (67, 384): (8, 1, False),
    (67, 385): (4, 7, False),
    # at least as many units as multiprocessors
    (131, 100): (8, 1, False),
    (132, 100): (4, 1, False),
    (132, 101): (8, 1, False),
    (197, 384): (8, 1, False),
    (197, 385): (8, 2, False),
    (198, 385): (8, 1, False),
    (198, 150): (4, 1, False),
    (198, 151): (8, 1, False),
    (396, 100): (4, 1, False),
    (397, 100): (2, 1, False),
    (397, 101): (4, 1, False),
    (528, 100): (2, 1, False),
    (529, 100): (4, 1, False),
    # the most blocks for a unit
    (1, 4096): (4, 64, False),
}


def test_thresholds_of_the_plan(plan_of):
    """For rows of 256 bytes on an H200; for int8's 128 bytes; for GPUs with 163 and 99 KB, without clusters."""
    found = {(units, kb): plan_of(units, kb * 4, 256, 132, 227 * 1024, True) for units, kb in PLANS}
    assert found == PLANS
    small = {(8, 512): (4, 8, True), (8, 513): (8, 8, True), (3, 1024): (8, 8, True), (2, 513): (4, 33, False)}
    small |= {(8, 385): (4, 8, True), (8, 1025): (4, 33, False)}  # not 8 warps from 385 KB on, as with 256 bytes
    assert {(units, kb): plan_of(units, kb * 8, 128, 132, 227 * 1024, True) for units, kb in small} == small
    assert plan_of(8, 513 * 16, 64, 132, 227 * 1024, True) == (4, 33, False)
    assert plan_of(8, 65, 255, 132, 227 * 1024, False) == (4, 1, False)  # 3 tiles of 32 tokens
    assert plan_of(8, 65, 256, 132, 227 * 1024, False) == (4, 2, False)  # 5 of 16
    a100 = {(8, 1024): (4, 13, False), (54, 1024): (4, 2, False), (55, 1024): (4, 3, False), (55, 384): (6, 1, False)}
    assert {(units, kb): plan_of(units, kb * 4, 256, 108, 163 * 1024, False) for units, kb in a100} == a100
    assert plan_of(8, 4096, 256, 170, 99 * 1024, False) == (3, 21, False)
    assert plan_of(8, 4096, 256, 170, 99 * 1024, True) == (3, 21, False)  # too few warps for a cluster
    # how many warps fit next to the epilogue, and how many blocks of 4 warps fit on a multiprocessor
    assert [plan_of(200, 4096, 256, 132, 112 * 1024 - x, False)[0] for x in (0, 1)] == [4, 3]
    assert [plan_of(8, 4096, 256, 132, 213 * 1024 - x, False)[1] for x in (0, 1)] == [33, 16]
    assert [plan_of(67, 1536, 256, 132, kb * 1024, False) for kb in (112, 137)] == [(4, 3, False), (5, 1, False)]
    assert plan_of(9, 385 * 4, 256, 144, 227 * 1024, True) == (8, 8, True)  # just two blocks on each multiprocessor


def test_int8_asked_by_torch(lib, device):
    """opcheck, and a compiled step that writes the cache and reads it."""
    (q, keys, values, lengths, _, *scales), _ = make([3, 39], device=device, int8=True)
    cache = [keys, values, *(x.nan_to_num() for x in scales)]
    torch.library.opcheck(torch.ops.decode_attention.attend.default, (q, keys, values, lengths, None, *scales))
    new = torch.randn(2, 12, 1, 64, device=device).half().split((8, 2, 2), 1)
    more = (*new, *torch.randn(2, 40, 32, device=device), lengths)
    torch.library.opcheck(torch.ops.decode_attention.append.default, (*more, *cache))

    def step(*cache):
        rotated = lib.append(*more, *cache)
        return lib.attend(rotated[:, :, 0], *cache[:2], lengths + 1, None, *cache[2:])

    with torch.inference_mode():  # a cache that was made there has no version to count up
        made = [x.clone() for x in cache]
        lib.append(*more, *made)
    with pytest.raises(RuntimeError, match=r"made under torch.inference_mode"):
        lib.append(*more, *made)
    torch.compiler.reset()
    caches = [[x.clone() for x in cache] for _ in range(2)]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*caches[0]), step(*caches[1]))
    assert all(map(torch.equal, *caches))


def starts(x):
    """Where the rows of [batch, heads, tokens, d] start in their storage."""
    indices = itertools.product(*map(range, x.shape[:3]))
    return [x.storage_offset() + sum(map(operator.mul, index, x.stride())) for index in indices]


def test_append_refuses_shared_elements(lib, device):
    """Views of one buffer, at random: refused exactly if two elements that are written, or read, are one."""
    random.seed(0)
    found = {True: 0, False: 0}
    for _ in range(300):
        buffer = torch.zeros(20000, dtype=torch.float16, device=device)
        shape, one = (2, 2, random.choice((1, 3))), torch.ones(3, 32, device=device)

        def view(tokens, buffer=buffer, shape=shape):
            strides = random.choice(list(itertools.permutations((64 * random.choice((1, 2)), 384, 768))))
            strides = [stride + random.choice((0, 0, 8)) for stride in strides]
            return buffer[64 * random.randrange(100) :].as_strided((*shape[:2], tokens, 64), (*strides, 1))

        keys, values, k = view(shape[2]), view(shape[2]), view(1)
        written, read = starts(keys) + starts(values), starts(k)
        is_shared = any(abs(a - b) < 64 for a, b in itertools.combinations(written, 2))
        is_shared |= any(abs(a - b) < 64 for a, b in itertools.product(written, read))
        found[is_shared] += 1
        arguments = (k.clone(), k, k.clone(), one, one, integers([0, 0], device), keys, values)
        if is_shared:
            with pytest.raises(RuntimeError, match="shares memory with"):
                lib.append(*arguments)
        else:
            lib.append(*arguments)
    assert min(found.values()) > 50


def test_refuses(lib, device):
    """What tests/test_contract.py does not ask: caches of 8 bits, scalars."""
    (q, keys, values, lengths), _ = make([40, 17], device=device)
    scale, table, new = (torch.ones(shape, device=device) for shape in ((2, 2, 40), (40, 32), (2, 2, 1, 64)))
    eight = keys.char(), values.char()
    into = q[:, :, None], new.half(), new.half(), table, table, lengths
    for arguments, message in (
        ((q.char(), *eight, lengths, None, scale, scale), "Char q: expected Half or BFloat16"),
        ((q, *eight, lengths, None, scale, scale[:, :, 1:]), r"value_scale is Float\[2, 2, 39\]"),
        ((q, keys, values, lengths, None, scale, scale), "expected key_scale and value_scale"),
        ((q, keys, values, lengths, torch.tensor(0.1, requires_grad=True)), "scale is a Tensor, expected a number"),
        ((*into, *eight, scale, scale[:1].expand(scale.shape)), "value_scale shares memory with itself"),
        ((*into, *eight, scale, scale), "value_scale shares memory with key_scale"),
    ):
        with pytest.raises(RuntimeError, match=message):
            (lib.append if arguments[0].dim() == 4 else lib.attend)(*arguments)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_negative_views(lib, mode, device):
    """append() reads them, and refuses to write one, also where all tensors were made under inference mode."""
    with mode():
        q, k, v = torch.randn(2, 12, 1, 64, device=device).half().split((8, 2, 2), 1)
        cos, sin = torch.randn(2, 40, 32, device=device)
        lengths = integers([3, 39], device)
        caches = [[torch.zeros(2, 2, 40, 64, device=device).half() for _ in "kv"] for _ in range(2)]
        found = lib.append(*(torch._neg_view(-x) for x in (q, k, v, cos, sin)), lengths, *caches[0])
        assert torch.equal(found, lib.append(q, k, v, cos, sin, lengths, *caches[1]))
        assert all(map(torch.equal, *caches))
        for i in range(2):
            cache = [x if j == i else torch._neg_view(x) for j, x in enumerate(caches[0])]
            with pytest.raises(RuntimeError, match="the cache is a negative view"):
                lib.append(q, k, v, cos, sin, lengths, *cache)
        assert all(map(torch.equal, *caches))


@either_cache
def test_graphs_and_streams_with_growing_lengths(cuda, lib, int8):
    (_, keys, values, lengths, *scales), _ = make([4096, 4096], 32, 8, 4096, 128, device="cuda", int8=int8)
    caches = [[x.clone() for x in (keys, values, *scales[1:])] for _ in range(2)]
    qkv = torch.randn(2, 48, 1, 128, device="cuda").half().split((32, 8, 8), 1)
    table = torch.randn(2, 4096, 64, device="cuda").unbind()
    graph, compiled = torch.cuda.CUDAGraph(), torch.compile(lib.attend, mode="reduce-overhead")

    def step(attend, keys, values, *scales):
        q = lib.append(*qkv, *table, lengths, keys, values, *scales)
        return attend(q[:, :, 0], keys, values, lengths + 1, None, *scales)

    step(lib.attend, *caches[0])  # the cache is full: this writes nothing
    with torch.cuda.graph(graph):
        out = step(lib.attend, *caches[0])
    stream = torch.cuda.Stream()
    for i in range(300):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(5_000_000)  # kernels on another stream would read the lengths of the last step
            lengths.fill_(13 * i)
            right = step(lib.attend, *caches[1])
        stream.synchronize()
        graph.replay()
        assert torch.equal(out, right)
        assert i > 5 or torch.equal(step(compiled, *caches[1]), right)
    assert all(map(torch.equal, *caches))


@pytest.fixture
def two_sizes(cuda, lib):
    """Arguments of attend() for which a block of its kernel wants 200 KB of shared memory and 100 KB (on an H100)."""
    return [make([tokens], 32, 8, tokens, 128, torch.bfloat16, "cuda")[0] for tokens in (512, 4096)]


def test_calls_of_several_threads(lib, two_sizes, request):
    """None fails, and none is wrong. With --all 200,000 calls."""
    calls = 50_000 if request.config.getoption("--all") else 1_000  # of each thread
    right = [lib.attend(*arguments) for arguments in two_sizes]

    def work(thread):
        failed = 0
        for i in range(calls):
            which = (thread + i) % 2
            try:
                out = lib.attend(*two_sizes[which])
                failed += i % 50 == 0 and not torch.equal(out, right[which])
            except RuntimeError as error:
                print(error)
                failed += 1
        return failed

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 0


def test_graph_with_two_sizes(lib, two_sizes):
    """A graph keeps both; it replays after other calls, too."""
    right, graph = [lib.attend(*arguments) for arguments in two_sizes], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [lib.attend(*arguments) for arguments in two_sizes]
    for arguments in (two_sizes[1], two_sizes[0]):
        lib.attend(*arguments)
        for out in found:
            out.zero_()
        graph.replay()
        assert all(map(torch.equal, found, right))


def test_far_end(lib, device):
    """Caches of more than 2^31 elements on a GPU: only the last 16 tokens have scores and values that are not 0."""
    for batch, key_heads, tokens in ((1, 1, 2**24 + 16), (2, 8, 2**20 + 16)) if device == "cuda" else ((2, 8, 4096),):
        q = torch.rand(batch, 8, 128, device=device).half()
        cache = torch.zeros(batch, key_heads, tokens, 128, dtype=torch.int8, device=device)  # keys, and also values
        cache[:, :, -16:].random_(1, 128)
        lengths, scale = integers([tokens] * batch, device), torch.full(cache.shape[:3], 0.25, device=device)
        near, near_scale = cache[:, :, -32:].clone(), scale[:, :, -32:].clone()
        right = lib.attend(q, near, near, lengths, None, near_scale, near_scale)
        out = lib.attend(q, cache, cache, lengths, None, scale, scale)
        torch.testing.assert_close(out, right, rtol=0.01, atol=0)
        assert right.amin() > 0


def test_ladder(nvcc, lesson):
    """The reference on the CPU is right and, on a GPU with clusters, each rung for which it has the memory."""
    launch = lesson("decode_attention", "ladder").load()
    assert b"multiple of 4" in launch(1, *[None] * 4, 6, 1, None)
    rungs = 1
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0):
        is_large = torch.cuda.get_device_properties(0).shared_memory_per_block_optin >= 211 * 1024
        rungs = 6 if is_large else 5
        assert is_large or b"more shared memory" in launch(5, *[None] * 4, 4, 1, None)
    for rung, tokens in itertools.product(range(rungs), (1, 7, 16, 129, 1000)):
        torch.manual_seed(tokens)
        sizes = (3, 8, 1, 128), (3, 2, tokens, 128), (3, 2, tokens, 128)
        inputs = [torch.randn(size).bfloat16().to("cuda" if rung else "cpu") for size in sizes]
        inputs[0] *= 4  # few tokens have large weights
        right = F.scaled_dot_product_attention(*(x.double() for x in inputs), enable_gqa=True)
        out = torch.full_like(inputs[0], math.nan)
        assert launch(rung, *(ctypes.c_void_p(x.data_ptr()) for x in (out, *inputs)), 24, tokens, None) is None
        assert ((out - right).norm(dim=-1) / right.norm(dim=-1)).max() <= 0.006, (rung, tokens)
        inputs = [x.to(inputs[0].device) for x in minus_infinity(4, tokens, "cpu")]
        out = torch.full_like(inputs[0], math.nan)
        assert launch(rung, *(ctypes.c_void_p(x.data_ptr()) for x in (out, *inputs)), 32, tokens, None) is None
        torch.testing.assert_close(out.double(), expected(*inputs), rtol=0.02, atol=0.01, equal_nan=True)


def test_pages_of_bench(lib):
    """FlashInfer's cache has the same tokens in pages; only the last page of a row has some to spare."""
    cache = torch.randn(2, 3, 37, 8)
    pages = runpy.run_path(str(FOLDER / "bench.py"))["paged"](cache, 16)
    assert pages.shape == (6, 3, 16, 8)
    assert torch.equal(pages.unflatten(0, (2, 3)).transpose(1, 2).flatten(2, 3)[:, :, :37], cache)
