"""The project's CUDA launcher through tvm-ffi, as FlashInfer and FlashAttention-4 are called. Needs apache-tvm-ffi.

torch sees a Python function that it knows nothing of. custom_op makes an operator of it.
"""

from pathlib import Path

import torch
import tvm_ffi.cpp

ROOT = Path(__file__).resolve().parents[2]
module = tvm_ffi.cpp.load(
    "ways_tvm",
    sources=[f"{ROOT}/examples/ways/tvm_add.cu", f"{ROOT}/kernel/add2_kernel.cu"],
    extra_include_paths=[f"{ROOT}/include"],
)


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c = torch.empty_like(a)
    module.add(c, a, b)
    return c


add = torch.library.custom_op("ways::tvm_add", plain, mutates_args=(), device_types="cuda")
add.register_fake(lambda a, b: torch.empty_like(a))
add.register_autograd(lambda ctx, grad: (grad, grad))
