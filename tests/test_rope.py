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


def test_values(rope, device):
    """Of views that tests/test_contract.py does not have; half of d is no whole number of vectors; nothing at all."""
    for x in (
        torch.randn(2, 7, 3, 4, 16, device=device)[:, :, 1].transpose(1, 2),  # a part of qkv
        torch.randn(1, 1, 7, 16, device=device).expand(2, 4, 7, 16),
        torch.randn(2, 7, 4, 6, device=device).transpose(1, 2),
        torch.randn(2, 4, 0, 16, device=device),
    ):
        cos, sin = tables(x.shape[2], x.shape[3] // 2, device)
        y = rope.rotate(x, cos, sin)
        assert y.is_contiguous()
        torch.testing.assert_close(y, rope.by_torch(x, cos, sin))


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
