"""Search in point clouds, and a gather with a gradient: the operators of PointNet++. CPUs and CUDA GPUs.

xyz: [batch, n, 3], contiguous, float32 or float64. An index is int32.
"""

from torch import Tensor  # before _C, which is linked to torch's libraries
from torch.autograd import Function

from . import _C


class _Farthest(Function):
    @staticmethod
    def forward(ctx, xyz: Tensor, count: int) -> Tensor:
        index = _C.farthest(xyz, count)
        ctx.mark_non_differentiable(index)
        return index

    @staticmethod
    def backward(ctx, grad):
        return None, None


class _Ball(Function):
    @staticmethod
    def forward(ctx, xyz: Tensor, centers: Tensor, radius: float, count: int) -> Tensor:
        index = _C.ball(xyz, centers, radius, count)
        ctx.mark_non_differentiable(index)
        return index

    @staticmethod
    def backward(ctx, grad):
        return None, None, None, None


class _Nearest(Function):
    @staticmethod
    def forward(ctx, xyz: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        distance, index = _C.nearest(xyz, centers)
        ctx.mark_non_differentiable(distance, index)
        return distance, index

    @staticmethod
    def backward(ctx, grad_distance, grad_index):
        return None, None


class _Group(Function):
    @staticmethod
    def forward(ctx, features: Tensor, index: Tensor) -> Tensor:
        ctx.n = features.size(2)
        ctx.save_for_backward(index)
        return _C.group(features, index)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (index,) = ctx.saved_tensors
        return _C.group_backward(grad.contiguous(), index, ctx.n), None


def farthest(xyz: Tensor, count: int) -> Tensor:
    """Return the indices [batch, count] of points that lie far from each other: point 0, then always the one that is
    farthest from those already chosen."""
    return _Farthest.apply(xyz, count)


def ball(xyz: Tensor, centers: Tensor, radius: float, count: int) -> Tensor:
    """Return the indices [batch, m, count] of the first points closer than radius to each of centers [batch, m, 3].
    Missing ones repeat the first; where there is none, they are 0."""
    return _Ball.apply(xyz, centers, radius, count)


def nearest(xyz: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared distances and the indices [batch, m, 3] of the three points nearest to each center."""
    return _Nearest.apply(xyz, centers)


def group(features: Tensor, index: Tensor) -> Tensor:
    """Return features [batch, channels, n] at index [batch, m, count]: [batch, channels, m, count]. Differentiable."""
    return _Group.apply(features, index)
