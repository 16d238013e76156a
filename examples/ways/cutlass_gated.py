"""gated_linear of examples/matmul by CUTLASS, for Hopper GPUs. Needs nvidia-cutlass, whose headers take a minute or so.

examples/matmul/bench.py times it where the package is installed.
"""

import importlib.util
from pathlib import Path

import torch
from torch.utils.cpp_extension import load

package = importlib.util.find_spec("cutlass_library")
if not package:
    raise ImportError("no CUTLASS: python3 -m pip install nvidia-cutlass")
SOURCE = Path(package.origin).parent / "source"
# -DNDEBUG: its assert() is a call, for which ptxas would serialize wgmma (C7510).
FLAGS = ["-O3", "-std=c++17", "-DNDEBUG", "--expt-relaxed-constexpr", "-gencode=arch=compute_90a,code=sm_90a"]
load(
    "cutlass_gated",
    [str(Path(__file__).with_suffix(".cu"))],
    extra_cuda_cflags=[*FLAGS, "-DTORCH_TARGET_VERSION=0x020a000000000000"],
    extra_include_paths=[str(SOURCE / "include"), str(SOURCE / "tools" / "util" / "include")],
    is_python_module=False,
)
gated_linear = torch.ops.cutlass_gated.gated_linear
