"""Solutions of docs/9_reduction.md."""

import torch
from workshop import main


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
