"""A CuTe DSL kernel as an operator, from the object file that cute_kernel.py has left: the DSL takes no part any more.

a and b are contiguous float32 of the same shape and GPU, at multiples of 16 bytes: a real operator would check that.
"""

import shlex
from pathlib import Path

import torch
from torch.utils.cpp_extension import load

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build" / "cute"
if not (FOLDER / "cute_add.o").exists():
    raise ImportError(f"{FOLDER}/cute_add.o is missing: run `python3 examples/ways/cute_kernel.py sm_90` (your GPU's)")
objects = [shlex.quote(f"{FOLDER}/{name}") for name in ("cute_add.o", "libcuda_dialect_runtime_static.a")]
load(
    "ways_cute",
    [f"{HERE}/cute_add.cpp"],
    extra_include_paths=[str(FOLDER)],
    extra_ldflags=[*objects, "-lcudart_static", "-lrt", "-ldl", "-lpthread"],
    with_cuda=True,
    is_python_module=False,
)
add = torch.ops.ways_cute.add.default
torch.library.register_fake("ways_cute::add", lambda a, b: torch.empty_like(a))
torch.library.register_autograd("ways_cute::add", lambda ctx, grad: (grad, grad))
