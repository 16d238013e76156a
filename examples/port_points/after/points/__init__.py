"""Search in point clouds, and a gather with a gradient: the operators of PointNet++. CPUs and CUDA GPUs.

xyz: [batch, n, 3], float32 or float64. An index is int32.
"""

from pathlib import Path

import torch  # before _C, which is linked to torch's libraries
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

torch.ops.load_library(Path(__file__).with_name("_C.so"))
_ops, _namespace = torch.ops.points, torch.library.Library("points", "FRAGMENT")


def farthest(xyz: Tensor, count: int) -> Tensor:
    """Return the indices [batch, count] of points that lie far from each other: point 0, then always the one that is
    farthest from those already chosen."""
    return _ops.farthest(xyz, count)


def ball(xyz: Tensor, centers: Tensor, radius: float, count: int) -> Tensor:
    """Return the indices [batch, m, count] of the first points closer than radius to each of centers [batch, m, 3].
    Missing ones repeat the first; where there is none, they are 0."""
    return _ops.ball(xyz, centers, radius, count)


def nearest(xyz: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared distances and the indices [batch, m, 3] of the three points nearest to each center."""
    return _ops.nearest(xyz, centers)


def group(features: Tensor, index: Tensor) -> Tensor:
    """Return features [batch, channels, n] at index [batch, m, count]: [batch, channels, m, count]. Differentiable."""
    if unpack_dual(features).tangent is not None:  # register_autograd would drop it without a message
        raise RuntimeError("group: forward derivatives are not implemented")
    return _ops.group(features, index)


def _check(name: str, x: Tensor, other: Tensor) -> None:  # the rest is checked when the operator runs
    torch._check(x.device == other.device, lambda: f"{name} is on {x.device}, expected {other.device}")
    torch._check(x.shape[0] == other.shape[0], lambda: f"{name} has a batch of {x.shape[0]}, not {other.shape[0]}")


@torch.library.register_fake("points::farthest")
def _(xyz: Tensor, count: int) -> Tensor:
    return xyz.new_empty(xyz.shape[0], count, dtype=torch.int32)


@torch.library.register_fake("points::ball")
def _(xyz: Tensor, centers: Tensor, radius: float, count: int) -> Tensor:
    _check("centers", centers, xyz)
    return xyz.new_empty(*centers.shape[:2], count, dtype=torch.int32)


@torch.library.register_fake("points::nearest")
def _(xyz: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    _check("centers", centers, xyz)
    return centers.new_empty(centers.shape), centers.new_empty(centers.shape, dtype=torch.int32)


@torch.library.register_fake("points::group")
def _(features: Tensor, index: Tensor) -> Tensor:
    _check("index", index, features)
    return features.new_empty(*features.shape[:2], *index.shape[1:])


@torch.library.register_fake("points::group_backward")
def _(grad: Tensor, index: Tensor, n: int) -> Tensor:
    _check("index", index, grad)
    return grad.new_empty(*grad.shape[:2], n)


# Results without a gradient: autograd passes these operators by, and their calls enter no Python function.
for _name in ("farthest", "ball", "nearest"):
    _namespace.impl(_name, torch.library.fallthrough_kernel, "Autograd")


def _save(ctx, inputs, output) -> None:
    features, index = inputs
    ctx.n = features.shape[2]
    ctx.save_for_backward(index)


def _save_backward(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[1])


# Both are linear, and each is the other's gradient: so there are derivatives of any order.
torch.library.register_autograd(
    "points::group",
    lambda ctx, grad: (_ops.group_backward(grad, *ctx.saved_tensors, ctx.n), None),
    setup_context=_save,
)
torch.library.register_autograd(
    "points::group_backward",
    lambda ctx, grad: (_ops.group(grad, *ctx.saved_tensors), None, None),
    setup_context=_save_backward,
)
