"""Time the steps of docs/12_int4_linear.md, from one thread per output to the operator. Needs a GPU and nvcc.

python3 examples/int4_linear/ladder.py --json FILE
"""

import ctypes
from functools import partial

import torch
from bench import floor_us, inputs, is_ready, lesson, time_calls
from int4_linear import GROUP, HERE, dequantize, int4_linear, pack
from torch import Tensor
from torch.utils import cpp_extension

N = K = 8192
STEPS = [
    "one thread per output",
    "one warp per output",
    "codes to floats by lop3",
    "tensor cores, codes in fragment order",
    "K split over the warps of a block",
    "copies ahead by cp.async, 4 tiles per fragment of x",
    "shape by size, start while the kernel before ends",
]


def call_step(library: ctypes.CDLL, step: int, weight: tuple[Tensor, ...], x: Tensor) -> Tensor:
    y = x.new_empty(len(x), N)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (y, x, *weight)]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if error := library.launch_step(step, *pointers, len(x), N, K, stream):
        raise RuntimeError(error.decode())
    return y


def row_by_row(codes: Tensor) -> Tensor:
    """Codes [N, K] as words [N, K/8]: column 2 i + j of a word is code 4 j + i."""
    eight = codes.view(N, K // 8, 4, 2).transpose(2, 3).reshape(N, K // 8, 8).long()
    return sum(eight[..., i] << 4 * i for i in range(8)).to(torch.uint32).view(torch.int32)


def measure(where: dict) -> list[dict]:
    flags = ["-O3", "-std=c++17"]
    path = cpp_extension.load("ladder", [str(HERE / "ladder.cu")], extra_cuda_cflags=flags, is_python_module=False)
    library = ctypes.CDLL(path)
    library.launch_step.restype = ctypes.c_char_p
    plain, packed = [], []  # the same weights, row by row and in the operator's order
    for _ in inputs(N, K, 1):
        codes, zero = (torch.randint(0, 16, shape, device="cuda") for shape in ((N, K), (N, K // GROUP)))
        packed.append(pack(codes, torch.rand(N, K // GROUP, device="cuda").bfloat16(), zero))
        plain.append((row_by_row(codes), *packed[-1][1:]))
    results = []
    for batch in (1, 16):
        xs, floor = inputs(N, K, batch), floor_us(N, K, batch, where["peak_gb_per_s"])
        right = xs[0].float() @ dequantize(*packed[0]).float().t()
        for step, name in enumerate(STEPS, 1):
            layers = [partial(call_step, library, step, weight) for weight in (plain if step <= 3 else packed)]
            if step == len(STEPS):
                layers = [lambda x, weight=weight: int4_linear(x, *weight) for weight in packed]
            torch.testing.assert_close(layers[0](xs[0]).float(), right, rtol=0.02, atol=0.02 * right.abs().max().item())
            us = time_calls(layers, xs)
            results.append({"batch": batch, "step": name, "us": us, "of_peak": floor / us})
            print(f"batch {batch:<4}{name:<56}{us:>8.2f} us  {floor / us:>6.1%} of the peak", flush=True)
    return results


if __name__ == "__main__":
    lesson.report(lesson.options(__doc__).parse_args(), is_ready, measure)
