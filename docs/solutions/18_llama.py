"""Solutions of docs/18_llama.md."""

import torch
from workshop import main


def exercise_1():
    """The floor of a step: weights without the embedding, and the cache."""
    weights = (8.03e9 - 128256 * 4096) * 4.19 / 8
    for name, size in (("bf16", 2 * 128), ("int8", 128 + 4)):
        cache = 32 * 2 * 8 * 32768 * size
        print(f"{name}: {(weights + cache) / 1e9:.1f} GB, {4.8e12 / (weights + cache):.0f} tokens per second")


def exercise_2():
    """The share of each token among many draws is its probability."""
    torch.manual_seed(0)
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    draws = (p / torch.empty(100_000, 4).exponential_()).argmax(-1)
    shares = draws.bincount() / len(draws)
    print("shares", [f"{share:.3f}" for share in shares.tolist()])
    torch.testing.assert_close(shares, p, atol=0.005, rtol=0)


main()
