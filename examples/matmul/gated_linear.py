"""silu(x Wg^T) * (x Wu^T), the first half of a Llama's feed-forward, in one kernel on Hopper GPUs.

    python3 examples/matmul/gated_linear.py

builds it and checks it. docs/15_matmul.md explains the kernel, ladder.py shows the way to it, bench.py measures it.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import operators

HERE = Path(__file__).resolve().parent
# Machine code for Hopper, and for other GPUs PTX that the driver compiles: without Hopper's instructions.
FLAGS = ("-gencode=arch=compute_80,code=compute_80", "-gencode=arch=compute_90a,code=sm_90a")


@functools.cache  # a second call must not register everything again
def build() -> str:
    """Compile and load the operator; for the CPU only where there is no CUDA toolkit. Returns the library's path."""
    path = operators.load("gated_linear", [HERE / f"gated_linear{end}" for end in (".cpp", "_kernel.cu")], FLAGS)
    register()
    return path


def interleave(wg: Tensor, wu: Tensor) -> Tensor:
    """The weights of gate and up, [H, K] each, as [2 H, K]: 8 rows of one, 8 of the other, ... H a multiple of 8."""
    if wg.dim() != 2 or wg.shape != wu.shape or len(wg) % 8:
        raise ValueError(f"interleave: found {list(wg.shape)} and {list(wu.shape)}, expected [multiple of 8, K] twice")
    return torch.stack((wg.unflatten(0, (-1, 8)), wu.unflatten(0, (-1, 8))), 1).flatten(0, 2)


def gated_linear(x: Tensor, w: Tensor) -> Tensor:
    """Return silu(x Wg^T) * (x Wu^T), [..., H], for x: [..., K] and w = interleave(Wg, Wu).

    One device, and one dtype: float32, float64, float16 or bfloat16 (torch.autocast casts as for F.linear). Otherwise
    RuntimeError. Any strides (copied first, if not contiguous). bfloat16 on Hopper, K a multiple of 8: one kernel, that
    rounds once, at the end. Anything else: torch's own operators. Every derivative of torch; the backward pass computes
    both products again. vmap with a batch of w calls it for each member. Call build() first.
    """
    if operators.is_tangent_hidden(x, w):
        torch.ops.gated_linear.gated_linear(x, w)  # for its checks
        return reference(x, w)
    return torch.ops.gated_linear.gated_linear(x, w)


def gate(both: Tensor) -> Tensor:
    """silu(gate) * up of products with an interleaved weight, [..., 2 H]."""
    gates, ups = both.unflatten(-1, (both.shape[-1] // 16, 2, 8)).unbind(-2)
    return (F.silu(gates) * ups).flatten(-2)


def reference(x: Tensor, w: Tensor) -> Tensor:
    """The same by torch's own operators."""
    return gate(F.linear(x, w))


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, below: Callable, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return below(x, w)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        both = F.linear(x, w)  # not kept since forward: it is twice as large as the result
        (grad,) = torch.func.vjp(gate, both)[1](dy)
        dx = grad @ w if ctx.needs_input_grad[1] else None
        dw = _rows(grad).t() @ _rows(x) if ctx.needs_input_grad[2] else None
        return None, dx, dw


def _rows(x: Tensor) -> Tensor:
    """x as a matrix. reshape(-1, ...) cannot say how many rows have no columns."""
    return x.unsqueeze(0).flatten(0, -2)


def _autocast(x: Tensor, w: Tensor) -> Tensor:
    dtype = torch.get_autocast_dtype(x.device.type)
    with torch.autocast(x.device.type, enabled=False):
        return gated_linear(operators.cast(x, dtype), operators.cast(w, dtype))


def register() -> None:
    """The operator's Python side: derivatives, autocast, a fake kernel, vmap."""
    op = torch.ops.gated_linear.gated_linear.default
    operators.register_derivatives(op, reference, _WithGradient.apply)
    for device in ("CPU", "CUDA"):
        operators.library("gated_linear").impl("gated_linear", _autocast, f"Autocast{device}")

    @torch.library.register_fake("gated_linear::gated_linear")
    def _(x: Tensor, w: Tensor) -> Tensor:
        operators.expect_one_device("gated_linear", x, w)
        message = f"x is {[*x.shape]}, w is {[*w.shape]}, expected [..., K] and [2 H, K], H a multiple of 8"
        operators.expect("gated_linear", x.dim() > 0 and w.dim() == 2, message)
        operators.expect("gated_linear", x.shape[-1] == w.shape[1], message)
        operators.expect("gated_linear", w.shape[0] % 16 == 0, message)
        return x.new_empty(*x.shape[:-1], w.shape[0] // 2)

    @torch.library.register_vmap(op)
    def _(info, in_dims, x: Tensor, w: Tensor):
        if in_dims[1] is None and x.dim() > 1:  # a batch is one more leading dimension
            return gated_linear(x.movedim(in_dims[0], 0), w), 0
        return operators.vmap_one_by_one(gated_linear, info, in_dims, x, w)


def main() -> None:
    build()
    for device in ["cpu"] + ["cuda"] * (torch.cuda.is_available() and operators.has_toolkit()):
        x, wg, wu = (torch.randn(size, 512, dtype=torch.bfloat16, device=device) for size in (64, 256, 256))
        right = reference(x.double(), interleave(wg, wu).double())
        error = (gated_linear(x, interleave(wg, wu)) - right).norm() / right.norm()
        assert error < torch.finfo(x.dtype).eps
        print(f"{device}: silu(x Wg^T) * (x Wu^T) for 64 rows of 512, 2 x 256 rows of weights: off by {error:.1e}")


if __name__ == "__main__":
    main()
