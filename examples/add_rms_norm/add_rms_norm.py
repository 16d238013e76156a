"""Residual add and RMSNorm in one operator, forward and backward: s = a + b; y = s / rms(s) * weight.

    python3 examples/add_rms_norm/add_rms_norm.py

builds it and checks it against torch. docs/14_add_rms_norm.md explains the kernels; bench.py measures them against
torch.compile, Liger and QuACK.
"""

import functools
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import operators

HERE = Path(__file__).resolve().parent
LIBRARY = torch.library.Library("add_rms_norm", "FRAGMENT")


@functools.cache  # a second call must not register everything again
def build() -> str:
    """Compile and load the operator; for the CPU only where there is no CUDA toolkit. Returns the library's path."""
    names = "add_rms_norm.cpp", "add_rms_norm_cpu.cpp", "add_rms_norm_kernel.cu"
    path = operators.load("add_rms_norm", [HERE / name for name in names], operators.target_flags(oldest=75))
    register()
    return path


def add_rms_norm(a: Tensor, b: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return y and s: s = a + b, and y = s / sqrt(mean(s * s) + eps) * weight over the last dimension.

    a, b: one shape with any leading dimensions and strides; weight: [a.shape[-1]]. One device, and one dtype: float32,
    float64, float16 or bfloat16. With halves weight may be float32, and then its gradient is. Else RuntimeError.
    y and s have a's dtype; s is rounded once, sums are float32 (float64 for float64). Under CUDA's autocast all but
    float64 become float32; under a CPU's, a and b get their common dtype. Differentiable once, under torch.func any
    number of times; eps is a number and gets no gradient. Two runs give the same bits. Call build() first.
    """
    if isinstance(eps, Tensor):  # torch would convert it, and drop its gradient
        raise RuntimeError("add_rms_norm: eps is a Tensor, expected a number, which has no gradient: pass eps.item()")
    if operators.is_tangent_hidden(a, b, weight):
        torch.ops.add_rms_norm.add_rms_norm(a, b, weight, eps)  # for its checks
        return reference(a, b, weight, eps)
    return torch.ops.add_rms_norm.add_rms_norm(a, b, weight, eps)[:2]


def reference(a: Tensor, b: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """The same by torch's own operators."""
    s = a + b
    return F.rms_norm(s, weight.shape, weight, eps), s


def _by_torch(a: Tensor, b: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    y, s = reference(a, b, weight, eps)
    wide = torch.promote_types(s.dtype, torch.float32)
    return y, s, (s.detach().to(wide).square().mean(-1) + eps).rsqrt()


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below, a: Tensor, b: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        y, s, rstd = below(a, b, weight, eps)
        ctx.mark_non_differentiable(rstd)
        ctx.set_materialize_grads(False)  # an unused output's gradient is None: no tensor of zeros to make and to read
        ctx.save_for_backward(s, weight, rstd)
        return y, s, rstd

    @staticmethod
    def backward(ctx, dy: Tensor | None, ds: Tensor | None, _):
        if dy is None:  # only s was used
            return None, ds, ds, None, None
        dx, dweight = torch.ops.add_rms_norm.add_rms_norm_backward(dy, ds, *ctx.saved_tensors)
        return None, dx, dx, dweight, None  # d(a + b) is the same for a and b


class _NoSecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below, *arguments):
        return below(*arguments)

    @staticmethod
    def backward(*arguments):
        raise RuntimeError("add_rms_norm has no second derivative: its gradient is a kernel without one")


def _autocast_on_cpu(a: Tensor, b: Tensor, weight: Tensor, eps: float):
    """As the pair there: a + b has the common dtype, in which F.rms_norm computes with any weight."""
    op = torch.ops.add_rms_norm.add_rms_norm
    with torch.autocast("cpu", enabled=False):
        if not all(isinstance(x, Tensor) and x.is_floating_point() for x in (a, b, weight)):
            return op(a, b, weight, eps)  # which refuses them
        dtype = torch.promote_types(a.dtype, b.dtype)
        is_wide = weight.dtype == torch.promote_types(dtype, torch.float32)
        return op(a.to(dtype), b.to(dtype), weight if is_wide else weight.to(dtype), eps)


def register() -> None:
    """The operator's Python side: fake kernels, derivatives, autocast, vmap."""
    forward = torch.ops.add_rms_norm.add_rms_norm.default
    backward = torch.ops.add_rms_norm.add_rms_norm_backward.default
    operators.register_derivatives(forward, _by_torch, _Gradient.apply)
    operators.register_derivatives(backward, _NoSecond.backward, _NoSecond.apply)
    torch.library.register_autocast("add_rms_norm::add_rms_norm", "cuda", torch.float32)  # as F.rms_norm is
    LIBRARY.impl(forward, _autocast_on_cpu, "AutocastCPU")

    @torch.library.register_fake("add_rms_norm::add_rms_norm")
    def _(a: Tensor, b: Tensor, weight: Tensor, eps: float):
        operators.expect_one_device("add_rms_norm", a, b, weight)
        operators.expect("add_rms_norm", a.dim() > 0, "a has no last dimension, expected [..., width]")
        y, s = (torch.empty_like(a, memory_format=torch.contiguous_format) for _ in "ys")
        return y, s, a.new_empty(a.shape[:-1], dtype=torch.promote_types(a.dtype, torch.float32))

    @torch.library.register_fake("add_rms_norm::add_rms_norm_backward")
    def _(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor):
        operators.expect_one_device("add_rms_norm", dy, ds, s, weight, rstd)
        return torch.empty_like(s, memory_format=torch.contiguous_format), weight.new_empty(weight.shape)

    @torch.library.register_vmap(forward)
    def _(info, in_dims, a: Tensor, b: Tensor, weight: Tensor, eps: float):
        is_scalar = a is not None and a.dim() == (0 if in_dims[0] is None else 1)
        if a is None or b is None or is_scalar or in_dims[2] is not None:  # the operator has a word on some of these
            return operators.vmap_one_by_one(forward, info, in_dims, a, b, weight, eps)
        a, b = (
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((a, b), in_dims[:2], strict=True)
        )
        return forward(a, b, weight, eps), 0  # a batch is one more leading dimension

    # Each member has a gradient of the weight of its own.
    torch.library.register_vmap(backward, functools.partial(operators.vmap_one_by_one, backward))


def compare(device: str) -> None:
    """Values and gradients against torch; tests/test_add_rms_norm.py compares many sizes with float64."""
    shape = (3, 50, 200)
    a, b, weight = (torch.randn(size, device=device, requires_grad=True) for size in (shape, shape, shape[-1:]))
    dy, ds = torch.randn(2, *shape, device=device)
    ours, theirs = (
        (*outputs, *torch.autograd.grad(outputs, (a, b, weight), (dy, ds)))
        for outputs in (add_rms_norm(a, b, weight), reference(a, b, weight))
    )
    torch.testing.assert_close(ours, theirs)
    print(f"{device}: values and gradients are torch's, within rounding")


def main() -> None:
    build()
    compare("cpu")
    if torch.cuda.is_available() and operators.has_toolkit():
        compare("cuda")
    try:
        add_rms_norm(torch.ones(2, 3), torch.ones(2, 4), torch.ones(3))
    except RuntimeError as error:
        print("refused, as it should be:", str(error).splitlines()[0])


if __name__ == "__main__":
    main()
