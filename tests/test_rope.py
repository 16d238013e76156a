"""examples/rope: the recipe of docs/6_your_own.md. Strided inputs, and tables."""

from pathlib import Path

import pytest
import torch

ROPE = Path(__file__).resolve().parent.parent / "examples" / "rope"


@pytest.fixture(scope="module")
def rope(lesson):
    return lesson("rope")


def tables(tokens, half, device, dtype=torch.float32):
    angle = torch.rand(tokens, half, device=device, dtype=dtype) * 6
    return angle.cos(), angle.sin()


def views(device):
    """Dense, transposed, parts of a larger tensor, expanded, odd steps, an address that is no multiple of 16, empty."""
    qkv = torch.randn(2, 7, 3, 4, 16, device=device)  # [batch, tokens, 3, heads, d]
    yield "contiguous", torch.randn(2, 4, 7, 16, device=device)
    yield "transposed", qkv[:, :, 1].transpose(1, 2)
    yield "every other feature", torch.randn(2, 4, 7, 32, device=device)[..., ::2]
    yield "features first", torch.randn(16, 7, 4, 2, device=device).permute(3, 2, 1, 0)
    yield "expanded", torch.randn(1, 1, 7, 16, device=device).expand(2, 4, 7, 16)
    yield "rows of 17", torch.randn(2, 4, 7, 17, device=device)[..., :16]
    yield "off by one", torch.randn(2 * 4 * 7 * 16 + 1, device=device)[1:].view(2, 4, 7, 16)
    yield "half of 3", torch.randn(2, 7, 4, 6, device=device).transpose(1, 2)
    yield "empty", torch.randn(2, 4, 0, 16, device=device)


def test_values(rope, device):
    for name, x in views(device):
        cos, sin = tables(x.shape[2], x.shape[3] // 2, device)
        for c, s in ((cos, sin), (cos.t().contiguous().t(), sin)):  # a table may have any strides, too
            y = rope.rotate(x, c, s)
            assert y.is_contiguous(), name
            torch.testing.assert_close(y, rope.by_torch(x, c, s), msg=lambda text, name=name: f"{name}: {text}")
        unaligned = torch.cat([cos.new_zeros(1), cos.flatten()])[1:].view(cos.shape)
        assert torch.equal(rope.rotate(x, unaligned, sin), y), name


def test_refusals(rope, device):
    x = torch.randn(2, 4, 7, 16, device=device)
    cos, sin = tables(7, 8, device)
    with pytest.raises(RuntimeError, match="detach it"):  # no gradient is lost without a word
        rope.rotate(x, cos, sin.requires_grad_())
    sin = sin.detach()
    with pytest.raises(NotImplementedError, match="must be the same for all"):
        torch.vmap(rope.rotate, in_dims=(None, 0, None))(x, cos.expand(3, 7, 8), sin)
    for f in (torch.func.grad, lambda f: lambda sin: torch.func.jvp(f, (sin,), (sin,))[1]):  # torch.func has them
        mine, right = (f(lambda sin, g=g: g(x, cos, sin).square().sum())(sin) for g in (rope.rotate, rope.by_torch))
        torch.testing.assert_close(mine, right)
