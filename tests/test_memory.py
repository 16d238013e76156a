"""On a GPU: the lessons' kernels stay within their tensors, at sizes that fill no block."""

import os
import sys

import pytest
from test_debug import NO_CACHE, ROOT, find, output

LESSONS = {"add_rms_norm": "add_rms_norm", "int4_linear": "int4_linear", "decode_attention": "decode_attention"}
LESSONS |= {"matmul": "gated_linear"}
PROGRAM = """
import importlib, itertools, sys
import torch

add_rms_norm, int4_linear, decode_attention, gated_linear = map(importlib.import_module, sys.argv[1:])
for lesson in (add_rms_norm, int4_linear, decode_attention, gated_linear):
    lesson.build()

def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda", dtype=dtype)

for dtype, rows, width in itertools.product(
    (torch.float32, torch.bfloat16), (1, 3, 40, 1500), (7, 33, 130, 1001, 4100)
):
    a, b, w = (randn(*shape, dtype=dtype).requires_grad_() for shape in ((rows, width), (rows, width), (width,)))
    y, s = add_rms_norm.add_rms_norm(a, b, w, 1e-6)
    (y.sum() + s.sum()).backward()
for n, k, batch in itertools.product((64, 192, 2112), (64, 576), (1, 9, 40, 70, 130, 300)):
    weight = int4_linear.quantize(randn(n, k))
    int4_linear.int4_linear(randn(batch, k), *weight, randn(n))
    *_, between, squares = int4_linear.linear_before_norm(randn(batch, k), *weight, None, randn(batch, n), randn(n))
    int4_linear.linear_after_norm(between, squares, 1e-5, *int4_linear.quantize(randn(64, n)))
sizes = (1, 8, 2, 5, 64), (2, 10, 5, 333, 128), (3, 7, 7, 41, 128), (1, 16, 1, 3000, 64)
for batch, heads, key_heads, tokens, d in sizes:
    cache = [randn(batch, key_heads, tokens, d) for _ in "kv"]
    lengths = torch.randint(1, tokens, (batch,), device="cuda", dtype=torch.int32)
    decode_attention.attend(randn(batch, heads, d), *cache, lengths)
    new = [randn(batch, count, 1, d) for count in (heads, key_heads, key_heads)]
    tables = [randn(tokens, d // 2, dtype=torch.float32) for _ in "cs"]
    decode_attention.append(*new, *tables, lengths, *cache)
    decode_attention.step(*(x[:, :, 0] for x in new), *tables, lengths, *cache)
for batch, k, n in ((6, 24, 32), (65, 72, 160), (300, 328, 1040)):
    gated_linear.gated_linear(randn(batch, k), randn(n, k))
torch.cuda.synchronize()
print("all have run")
"""


@pytest.mark.thorough
def test_memcheck(cuda, lesson):
    """Each tensor is an allocation by itself, so that compute-sanitizer sees a kernel that leaves one."""
    for folder, module in LESSONS.items():
        lesson(folder, module)
    folders = os.pathsep.join(str(ROOT / "examples" / folder) for folder in LESSONS)
    command = [find("compute-sanitizer"), "--tool", "memcheck", "--print-limit", "3", sys.executable, "-c", PROGRAM]
    out = output(*command, *LESSONS.values(), PYTHONPATH=folders, **NO_CACHE)
    assert "all have run" in out, out
    assert "ERROR SUMMARY: 0 errors" in out, out
