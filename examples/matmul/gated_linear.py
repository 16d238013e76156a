"""silu(x Wg^T) * (x Wu^T), the first half of a Llama's feed-forward, in one kernel on Hopper GPUs.

    python3 examples/matmul/gated_linear.py

checks it. docs/15_matmul.md explains the kernel, ladder.py shows the way to it, bench.py measures it.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import operators

HERE = Path(__file__).resolve().parent
LIBRARY = torch.library.Library("gated_linear", "DEF")
LIBRARY.define("gated_linear(Tensor x, Tensor w) -> Tensor")


def load(name: str) -> Callable | None:
    """Compile NAME.cu and return its launch_NAME(). None without a CUDA toolkit: see operators.has_toolkit()."""
    if not operators.has_toolkit():
        return None
    # Machine code for Hopper, and for other GPUs PTX that the driver compiles: without Hopper's instructions.
    flags = ("-gencode=arch=compute_80,code=compute_80", "-gencode=arch=compute_90a,code=sm_90a")
    return operators.load_launcher(name, HERE / f"{name}.cu", *flags, function=f"launch_{name}")


def interleave(wg: Tensor, wu: Tensor) -> Tensor:
    """The weights of gate and up, [H, K] each, as [2 H, K]: 8 rows of one, 8 of the other, ... H a multiple of 8."""
    if wg.dim() != 2 or wg.shape != wu.shape or len(wg) % 8:
        raise ValueError(f"interleave: found {list(wg.shape)} and {list(wu.shape)}, expected [multiple of 8, K] twice")
    return torch.stack((wg.unflatten(0, (-1, 8)), wu.unflatten(0, (-1, 8))), 1).flatten(0, 2)


def gated_linear(x: Tensor, w: Tensor) -> Tensor:
    """Return silu(x Wg^T) * (x Wu^T), [..., H], for x: [..., K] and w = interleave(Wg, Wu).

    One device, and one dtype: float32, float64, float16 or bfloat16 (torch.autocast casts as for F.linear). Otherwise
    RuntimeError. Any strides (copied first, if not contiguous). bfloat16 on Hopper with a CUDA toolkit, K a multiple of
    8: one kernel, which rounds once, at the end. The first call compiles it. Anything else: torch's own operators.
    Every derivative of torch; the backward pass computes both products again.
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


def _check(x: Tensor, w: Tensor) -> None:
    def message() -> str:
        found = [f"{each.dtype}{list(each.shape)} on {each.device}" for each in (x, w)]
        return f"gated_linear: x is {found[0]}, w is {found[1]}; expected [..., K] and [2 H, K] on one device, of one \
dtype (float32, float64, float16 or bfloat16), H a multiple of 8: use interleave()"

    is_known = x.dtype in operators.FLOATS
    torch._check(is_known and x.dtype == w.dtype and x.device == w.device, message)
    torch._check(x.dim() > 0 and w.dim() == 2, message)
    torch._check(x.shape[-1] == w.shape[1], message)
    torch._check(w.shape[0] % 16 == 0, message)


def _tidy(x: Tensor) -> Tensor:
    """Contiguous, and at an address that TMA accepts."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def _forward(x: Tensor, w: Tensor) -> Tensor:
    _check(x, w)
    n, k = w.shape
    fits = x.dtype == torch.bfloat16 and k % 8 == 0 and x.numel() * n > 0 and max(x.numel() // k, n, k) < 2**31
    is_hopper = x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == 9
    kernel = load("gated_linear") if fits and is_hopper else None
    if not kernel:
        return reference(x, w).clone()  # without clone() a view, which autograd does not let anyone change in place
    y = x.new_empty(*x.shape[:-1], n // 2)
    with torch.cuda.device(x.device):
        operators.launch(kernel, y, _tidy(x), _tidy(w), x.numel() // k, n, k)
    return y


@torch.library.register_fake("gated_linear::gated_linear")
def _(x: Tensor, w: Tensor) -> Tensor:
    _check(x, w)
    return x.new_empty(*x.shape[:-1], w.shape[0] // 2)


@torch.library.register_vmap("gated_linear::gated_linear")
def _(info, in_dims, x: Tensor, w: Tensor):
    if in_dims[1] is None:
        return gated_linear(x.movedim(in_dims[0], 0), w), 0  # a batch is one more leading dimension
    x = x.unsqueeze(0) if in_dims[0] is None else x.movedim(in_dims[0], 0)
    both = x.unsqueeze(1).flatten(1, -2) @ w.movedim(in_dims[1], 0).mT
    return gate(both).reshape(len(both), *x.shape[1:-1], both.shape[-1] // 2), 0


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
        dw = grad.reshape(-1, len(w)).t() @ x.reshape(-1, w.shape[1]) if ctx.needs_input_grad[2] else None
        return None, dx, dw


def _autocast(x: Tensor, w: Tensor) -> Tensor:
    device = x.device.type
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return gated_linear(*(each if each.dtype == torch.float64 else each.to(dtype) for each in (x, w)))


for device in ("CPU", "CUDA"):
    LIBRARY.impl("gated_linear", _forward, device)
    LIBRARY.impl("gated_linear", _autocast, f"Autocast{device}")
operators.register_derivatives(torch.ops.gated_linear.gated_linear.default, reference, _WithGradient.apply)


def main() -> None:
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        x, wg, wu = (torch.randn(size, 512, dtype=torch.bfloat16, device=device) for size in (64, 256, 256))
        right = reference(x.double(), interleave(wg, wu).double())
        error = (gated_linear(x, interleave(wg, wu)) - right).norm() / right.norm()
        assert error < torch.finfo(x.dtype).eps
        print(f"{device}: silu(x Wg^T) * (x Wu^T) for 64 rows of 512, 2 x 256 rows of weights: off by {error:.1e}")


if __name__ == "__main__":
    main()
