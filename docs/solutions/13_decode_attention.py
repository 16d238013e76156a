"""Solutions of docs/13_decode_attention.md."""

import torch
from workshop import main


def exercise_1():
    """Bytes of a cache, and the floor of one step's attention."""
    layers, key_heads, d, tokens = 32, 8, 128, 4096
    bf16 = layers * 2 * key_heads * tokens * d * 2
    int8 = layers * 2 * key_heads * tokens * (d + 4)
    print(f"{bf16 / 2**20:.0f} MiB and {int8 / 2**20:.0f}: {bf16 / 4.8e6:.0f} and {int8 / 4.8e6:.0f} us at 4.8 TB/s")
    assert (bf16, int8) == (512 * 2**20, 264 * 2**20)


def exercise_2():
    """Two parts of a softmax, joined."""
    torch.manual_seed(0)
    scores, values = torch.randn(100, dtype=torch.float64) * 5, torch.randn(100, 64, dtype=torch.float64)
    parts = []
    for some in (slice(0, 30), slice(30, 100)):
        top = scores[some].max()
        weights = (scores[some] - top).exp()
        parts.append((top, weights.sum(), weights @ values[some]))
    top = max(part[0] for part in parts)
    weight = sum((part[0] - top).exp() * part[1] for part in parts)
    joined = sum((part[0] - top).exp() * part[2] for part in parts) / weight
    torch.testing.assert_close(joined, scores.softmax(0) @ values)
    print("the parts joined are the softmax of the whole")


def exercise_3():
    """A byte becomes a float16 without a conversion."""
    x = torch.arange(-128, 128, dtype=torch.int16)
    bits = 0x6400 | ((x + 128) & 0xFF)
    halves = bits.view(torch.float16)
    print("code 5 is", hex(bits[133].item()), "and reads", halves[133].item())
    assert torch.equal(halves - 1152, x.half())


main()
