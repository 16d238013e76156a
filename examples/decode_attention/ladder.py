"""Time the steps of docs/13_decode_attention.md, from one block per head to the operator. Needs a GPU and nvcc.

python3 examples/decode_attention/ladder.py --json FILE
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import partial

import torch
from bench import LLAMA, is_ready, lesson, make, quantized, rotate_sets, time_calls
from decode_attention import HERE, attend
from torch import Tensor
from torch.utils import cpp_extension


def call_step(
    launch: Callable, lengths: Tensor, is_shared: bool, blocks: int, q: Tensor, keys: Tensor, values: Tensor, _
):
    out = torch.empty_like(q)
    scratch = q.new_empty(q.shape[1] * blocks * 130, dtype=torch.float32)
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (out, q, keys, values, lengths, scratch)]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if error := launch(*pointers, keys.shape[2], is_shared, blocks, stream):
        raise RuntimeError(error.decode())
    return out


def measure(where: dict) -> Iterator[dict]:
    flags = ["-O3", "-std=c++17"]
    where = {"extra_include_paths": [str(HERE.parent)], "is_python_module": False}
    path = cpp_extension.load("steps", [str(HERE / "ladder.cu")], extra_cuda_cflags=flags, **where)
    launch = ctypes.CDLL(path).launch_step
    launch.restype = ctypes.c_char_p
    _, key_heads, d = LLAMA
    for tokens in (512, 4096, 32768):
        size, splits = 4 * key_heads * tokens * d, min(16, tokens // 128)
        step = partial(call_step, launch, torch.full((key_heads,), tokens, dtype=torch.int32, device="cuda"))
        steps = {
            "one block per head": partial(step, False, 1),
            "tokens split over blocks, joined by a second kernel": partial(step, False, splits),
            "the query heads of a key head together": partial(step, True, splits),
            "copies ahead; a cluster joins, or a second kernel that starts early": attend,
            "int8": attend,
        }
        inputs = rotate_sets(partial(make, 1, tokens, *LLAMA), size)
        right = attend(*inputs[0])
        for name, function in steps.items():
            if name == "int8":
                inputs, size = [quantized(*x) for x in inputs * 2], size / 2 * (1 + 4 / d)
            torch.testing.assert_close(function(*inputs[0]), right, rtol=0.03, atol=0.03 * right.abs().max().item())
            us = time_calls(function, inputs)
            of_peak = size / where["peak_gb_per_s"] * 1e-3 / us
            yield {"tokens": tokens, "step": name, "us": us, "of_peak": of_peak}


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), is_ready, measure)
