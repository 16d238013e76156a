"""Time the steps of docs/13_decode_attention.md, from one block per head to the operator. Needs a GPU and nvcc.

python3 examples/decode_attention/ladder.py --json FILE
"""

import ctypes
from functools import partial

import torch
from bench import LLAMA, is_ready, lesson, make, quantized, rotate_sets, time_calls
from decode_attention import HERE, attend
from torch import Tensor
from torch.utils import cpp_extension

STEPS = [
    "one block per head",
    "tokens split over blocks, joined by a second kernel",
    "the query heads of a key head together",
    "tensor cores",
    "copies ahead; a cluster joins, or a second kernel that starts early",
    "int8",
]


def call_step(library: ctypes.CDLL, step: int, q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    tokens, out = keys.shape[2], torch.empty_like(q)
    splits = min(16, -(-tokens // 128))
    scratch = q.new_empty(q.shape[1] * splits * 130, dtype=torch.float32)
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (out, q, keys, values, lengths, scratch)]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if error := library.launch_step(step, *pointers, tokens, splits, stream):
        raise RuntimeError(error.decode())
    return out


def measure(where: dict) -> list[dict]:
    peak = where["peak_gb_per_s"]
    flags = ["-O3", "-std=c++17"]
    path = cpp_extension.load("steps", [str(HERE / "ladder.cu")], extra_cuda_cflags=flags, is_python_module=False)
    library, results = ctypes.CDLL(path), []
    library.launch_step.restype = ctypes.c_char_p
    _, key_heads, d = LLAMA
    for tokens in (512, 4096, 32768):
        size = 4 * key_heads * tokens * d
        inputs = rotate_sets(partial(make, 1, tokens, *LLAMA), size)
        right = attend(*inputs[0])
        for step, name in enumerate(STEPS, 1):
            function = attend if step > 4 else partial(call_step, library, step)
            if step == 6:
                inputs, size = [quantized(*x) for x in inputs * 2], size / 2 * (1 + 4 / d)
            torch.testing.assert_close(function(*inputs[0]), right, rtol=0.03, atol=0.03 * right.abs().max().item())
            us = time_calls(function, inputs)
            results.append({"tokens": tokens, "step": name, "us": us, "of_peak": size / peak * 1e-3 / us})
            print(f"{tokens:>6} {name:<68}{us:>9.2f} us {results[-1]['of_peak']:>7.1%} of the peak", flush=True)
    return results


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), is_ready, measure)
