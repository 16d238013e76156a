"""Solutions of docs/17_decode_attention.md."""

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
    """The lane and the place of each score of a tile, by head and token."""
    scores = [(lane, i, j) for lane in range(32) for i in range(2) for j in range(2)]
    places = {(lane // 4, i * 8 + lane % 4 * 2 + j): (lane, i, j) for lane, i, j in scores}
    print("head 3, token 13: lane {}, scores[{}][{}]".format(*places[3, 13]))
    assert places[3, 13] == (14, 1, 1)
    assert len(places) == 128  # 8 rows of 16 tokens


def exercise_4():
    """The largest weights in float16, if a score may exceed the maximum by 8 or by 16."""
    weights = torch.tensor([2.0**8, 2.0**16]).half()
    print(f"2^8 and 2^16 in float16: {weights.tolist()}")
    assert weights.isfinite().tolist() == [True, False]


main()
