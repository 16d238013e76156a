"""python3 -m pytest"""

import pytest
import torch

import add2

pytestmark = pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [0, 1, 7, 1023, 100_003])
def test_values(n, dtype, device):
    a, b = torch.randn(2, n, device=device, dtype=dtype)
    assert torch.equal(add2.add2(a, b), a + b)
    c = torch.full_like(a, float("nan"))
    add2.torch_launch_add2(c, a, b, n)
    assert torch.equal(c, a + b)


def test_strides(device):
    a, b = torch.randn(2, 30, 20, device=device)
    assert torch.equal(add2.add2(a.t()[:, 1::3], b.t()[:, 1::3]), (a + b).t()[:, 1::3])


def test_gradient(device):
    inputs = torch.randn(2, 5, device=device, dtype=torch.float64).unbind()
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(add2.add2, inputs)
    assert torch.autograd.gradgradcheck(add2.add2, inputs)


def test_contract(device):
    """The schema says what is written, and the fake kernel gives the result's shape and strides."""
    a, b = torch.randn(2, 3, 4, device=device)
    torch.library.opcheck(torch.ops.add2.add2.default, (a.t().requires_grad_(), b.t()))
    assert torch.equal(torch.compile(add2.add2, backend="aot_eager", fullgraph=True)(a, b), a + b)


def test_refused(device):
    a = torch.ones(3, device=device)
    for b in (a[1:], a.double(), a.to("meta")):
        with pytest.raises((RuntimeError, NotImplementedError)):
            add2.add2(a, b)
