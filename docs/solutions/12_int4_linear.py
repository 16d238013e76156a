"""Solutions of docs/12_int4_linear.md."""

import torch
from workshop import main


def exercise_1():
    """The bytes of a quantized weight."""
    from int4_linear import quantize

    packed, scale, zero = quantize(torch.randn(8192, 8192, dtype=torch.bfloat16))
    codes, affine = packed.nbytes, scale.nbytes + zero.nbytes
    bits = 8 * (codes + affine) / 2**26
    print(f"{codes / 1e6:.1f} MB of codes, {affine / 1e6:.1f} MB of scales and zeros: {bits:.2f} bits")
    assert (codes, affine) == (2**25, 3 * 2**19)


def exercise_2():
    """Code 5 under the exponent of 16."""
    bits = torch.tensor([0x4180 | 5 << 3], dtype=torch.int16)
    print(hex(bits.item()), bits.view(torch.bfloat16).item())
    assert bits.view(torch.bfloat16).item() == 16 + 5


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
