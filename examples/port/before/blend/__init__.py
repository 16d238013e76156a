"""Two operators, on float32, float64 and float16, on CPUs and CUDA GPUs."""

from torch import Tensor  # before _C, which is linked to torch's libraries

from . import _C


def blend(a: Tensor, b: Tensor, mask: Tensor | None = None, alpha: float = 0.5) -> Tensor:
    """Return alpha * a + (1 - alpha) * b where mask is true (everywhere without a mask), else a. Differentiable."""
    return _C.blend(a, b, mask, alpha)


def sum_list(tensors: list[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, dtype and device. Differentiable."""
    return _C.sum_list(tensors)
