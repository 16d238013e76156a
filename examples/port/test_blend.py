"""The behaviour that a port has to keep: the same tests for each version. PYTHONPATH=after pytest test_blend.py"""

import blend
import pytest
import torch
from torch.autograd import forward_ad

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
CASES = [(device, dtype) for device in DEVICES for dtype in (torch.float32, torch.float64, torch.float16)]


def expected(a, b, mask, alpha):
    mixed = (alpha * a.double() + (1 - alpha) * b.double()).to(a.dtype)
    return mixed if mask is None else torch.where(mask, mixed, a)


@pytest.mark.parametrize(("device", "dtype"), CASES)
def test_values(device, dtype):
    a, b = torch.randn(2, 5, 70001, device=device).to(dtype)
    mask = torch.rand(5, 70001, device=device) < 0.5
    for x, y, m in ((a, b, None), (a, b, mask), (a.t(), b.t(), mask.t()), (a[:0], b[:0], None)):
        torch.testing.assert_close(blend.blend(x, y, m, 0.3), expected(x, y, m, 0.3))
    torch.testing.assert_close(blend.sum_list([a, b, a]), a + b + a)
    torch.testing.assert_close(blend.sum_list([a.t()]), a.t())


@pytest.mark.parametrize("device", DEVICES)
def test_gradients(device):
    a, b = torch.randn(2, 3, 4, device=device, dtype=torch.float64).requires_grad_()
    mask = torch.rand(3, 4, device=device) < 0.5
    for m in (None, mask):
        assert torch.autograd.gradcheck(lambda x, y, m=m: blend.blend(x, y, m, 0.3), (a, b))
    assert torch.autograd.gradcheck(lambda *tensors: blend.sum_list(list(tensors)), (a, b, a))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_that_are_not_finite(device):
    """Where the mask is false, b has no part in the result: its gradient is 0 whatever arrives."""
    a, b = torch.ones(2, 4, device=device).requires_grad_()
    mask = torch.tensor([True, False, False, True], device=device)
    arriving = torch.tensor([1.0, float("inf"), float("nan"), 2.0], device=device)
    (grad_b,) = torch.autograd.grad(blend.blend(a, b, mask, 0.25), b, arriving)
    assert grad_b.tolist() == [0.75, 0.0, 0.0, 1.5]


def test_forward_derivatives_are_refused():
    a = torch.ones(3)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="not implemented"):
        blend.blend(forward_ad.make_dual(a, a), a)


def test_refusals():
    a = torch.randn(3)
    for message, call in {
        "b has another shape": lambda: blend.blend(a, torch.randn(4)),
        "b has another dtype": lambda: blend.blend(a, a.double()),
        "mask has another dtype": lambda: blend.blend(a, a, a),
        "at least one tensor": lambda: blend.sum_list([]),
        "not implemented for 'Int'": lambda: blend.blend(a.int(), a.int()),
    }.items():
        with pytest.raises(RuntimeError, match=message):
            call()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_stream_and_device():
    a = torch.randn(1 << 24, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = blend.blend(a + 1, a, None, 0.5)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(y, a + 0.5)
    if torch.cuda.device_count() > 1:
        other = torch.ones(3, device="cuda:1")
        torch.testing.assert_close(blend.blend(other, other), other)
