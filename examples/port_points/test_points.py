"""The behaviour that the port has to keep: the same tests for both. PYTHONPATH=after pytest test_points.py"""

import points
import pytest
import torch

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
pytestmark = pytest.mark.parametrize("device", DEVICES)


def cloud(batch, n, device, dtype=torch.float32):
    """Whole numbers, so that distances are exact everywhere, and there are equal ones."""
    generator = torch.Generator().manual_seed(n)
    return torch.randint(-8, 9, (batch, n, 3), generator=generator).to(device, dtype)


def squared(xyz, centers):
    """Squared distances [batch, m, n]."""
    return (centers[:, :, None] - xyz[:, None]).square().sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_farthest(device, dtype):
    xyz = cloud(2, 1000, device, dtype)
    index = points.farthest(xyz, 40)
    assert index.dtype == torch.int32
    assert index.shape == (2, 40)
    between = squared(xyz, xyz)
    for b in range(2):
        chosen = [0]
        for _ in range(39):
            left = between[b, chosen].amin(0)
            chosen.append(int((left == left.max()).nonzero()[0]))  # the first of equal ones
        assert index[b].tolist() == chosen


def test_ball(device):
    xyz, centers = cloud(2, 500, device), cloud(2, 130, device)
    centers[0, 0] = 1000  # nothing is near
    index = points.ball(xyz, centers, 3.5, 7)
    near = squared(xyz, centers) < 3.5**2
    for b in range(2):
        for m in range(130):
            found = near[b, m].nonzero().flatten().tolist()[:7]
            assert index[b, m].tolist() == found + (found[:1] or [0]) * (7 - len(found))


def test_nearest(device):
    xyz, centers = cloud(2, 500, device), cloud(2, 130, device)
    distance, index = points.nearest(xyz, centers)
    expected = squared(xyz, centers).sort(dim=-1, stable=True)
    assert torch.equal(distance, expected.values[..., :3])
    assert torch.equal(index, expected.indices[..., :3].int())
    assert not points.nearest(xyz.clone().requires_grad_(), centers)[0].requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_group(device, dtype):
    features = torch.randn(2, 5, 300, device=device).to(dtype).requires_grad_()
    index = torch.randint(300, (2, 40, 9), device=device, dtype=torch.int32)
    y = points.group(features, index)
    wide = index.long().flatten(1)[:, None].expand(2, 5, 360)
    expected = features.gather(2, wide).view(2, 5, 40, 9)
    assert torch.equal(y, expected)
    grad = torch.randint(-4, 5, y.shape, device=device).to(dtype)  # sums of them are exact
    assert torch.equal(*(torch.autograd.grad(result, features, grad)[0] for result in (y, expected)))


def test_gradient(device):
    features = torch.randn(2, 3, 6, device=device, dtype=torch.float64).requires_grad_()
    index = torch.randint(6, (2, 4, 2), device=device, dtype=torch.int32)
    assert torch.autograd.gradcheck(lambda x: points.group(x, index), features)


def test_empty(device):
    features, index = torch.ones(2, 0, 4, device=device), torch.zeros(2, 3, 2, dtype=torch.int32, device=device)
    assert points.group(features, index).shape == (2, 0, 3, 2)
    assert points.ball(cloud(2, 5, device), cloud(2, 5, device)[:, :0], 1.0, 3).shape == (2, 0, 3)


def test_refusals(device):
    xyz, features = cloud(2, 5, device), torch.ones(2, 3, 5, device=device)
    index = torch.zeros(2, 3, 2, dtype=torch.int32, device=device)
    wrong = {
        "xyz": lambda: points.farthest(xyz[..., :2].contiguous(), 2),
        "count": lambda: points.farthest(xyz, 6),
        "centers": lambda: points.ball(xyz, xyz.double(), 1.0, 2),
        "at least 3": lambda: points.nearest(xyz[:, :2].contiguous(), xyz),
        "index must": lambda: points.group(features, index.long()),
    }
    for words, call in wrong.items():
        with pytest.raises(RuntimeError, match=words):
            call()
    if device == "cpu":  # a GPU stops at an assertion of the kernel
        with pytest.raises(IndexError, match="out of range"):
            points.group(features, index + 5)
