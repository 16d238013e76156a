"""Solutions of docs/16_int4_linear.md."""

import torch
from workshop import main


def exercise_3():
    """Both sides in float32, and with the two sums rounded to bfloat16."""
    torch.manual_seed(0)
    codes, zero, x = torch.randint(0, 16, (128,)).double(), 8, torch.randn(1000, 128, dtype=torch.float64)
    right = x @ (codes - zero)
    errors = {}
    for dtype in (torch.float32, torch.bfloat16):
        large, small = (x @ (16 + codes)).to(dtype), x.sum(1).to(dtype)
        errors[dtype] = (((large - (16 + zero) * small).double() - right).norm() / right.norm()).item()
        print(f"{dtype}: off by {errors[dtype]:.1e}")
    assert errors[torch.float32] < 1e-6
    assert errors[torch.bfloat16] > 1e-2


main()
