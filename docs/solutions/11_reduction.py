"""Solutions of docs/11_reduction.md."""

import tempfile
from pathlib import Path

import torch
from workshop import ROOT, main

ROW_MAXIMUM = {  # what changes in row_sum.cu
    "constexpr int kThreads": """// NaN if one of them is NaN, as torch.amax; fmaxf would return the other.
__device__ float maximum(float a, float b) { return a > b || isnan(a) ? a : b; }

constexpr int kThreads""",
    "x += __shfl_xor_sync(0xffffffff, x, distance)": "x = maximum(x, __shfl_xor_sync(0xffffffff, x, distance))",
    "total = 0": "total = -INFINITY",
    "total += shared[warp]": "total = maximum(total, shared[warp])",
    "float sum = 0": "float sum = -INFINITY",
    "sum += row[i]": "sum = maximum(sum, row[i])",
}


def exercise_1():
    """A row maximum: row_sum.cu with `maximum` for + and -INFINITY for 0. It keeps NaN."""
    from lab import kernels

    source = Path(ROOT, "examples", "reduction", "row_sum.cu").read_text()
    for old, new in ROW_MAXIMUM.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "row_maximum.cu")
        file.write_text(source)
        launchers = kernels.load(file)
    for width in (1, 33, 5001):
        x = torch.randn(6, width, device=launchers.device)
        x[1, 0], x[2, -1], x[3, width // 2], x[4] = float("nan"), float("nan"), float("-inf"), float("-inf")
        out = torch.empty(6, device=launchers.device)
        launchers.launch("launch_row_sum", out, x, *x.shape)
        assert torch.equal(out.nan_to_num(nan=7), x.amax(1).nan_to_num(nan=7)), width


def exercise_3():
    """1000 ones in bfloat16 are 256."""
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        total = torch.zeros((), dtype=dtype)
        for _ in range(1000):
            total += 1
        found[dtype] = total.item()
        print(f"   {dtype}: {total.item():g}")
    assert found == {torch.bfloat16: 256, torch.float32: 1000}


main()
