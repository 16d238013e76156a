"""Residual add and RMSNorm in one operator, forward and backward: s = a + b; y = s / rms(s) * weight.

    python3 examples/add_rms_norm/add_rms_norm.py

builds it and checks it against torch. docs/10_add_rms_norm.md explains the kernels; bench.py measures them against
torch.compile, Liger and QuACK.
"""

import functools
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
LIBRARY = torch.library.Library("add_rms_norm", "FRAGMENT")


@functools.cache  # a second call must not register everything again
def build() -> bool:
    """Compile and load the operator. Call it once, before use. Returns whether it has CUDA code.

    It has where torch has CUDA, and a CUDA toolkit is where torch looks for it: $CUDA_HOME, or the nvcc on PATH.
    """
    home = cpp_extension.CUDA_HOME
    with_cuda = bool(torch.version.cuda and home and Path(home, "include", "cuda_runtime.h").exists())
    if torch.cuda.is_available() and not with_cuda:
        print(f"building for the CPU only: no CUDA toolkit in {cpp_extension.CUDA_HOME} (set CUDA_HOME to its folder)")
    # Without a GPU torch's load() finds no GPU to compile for: an IndexError. One PTX serves all later GPUs.
    ptx = not torch.cuda.is_available() and "TORCH_CUDA_ARCH_LIST" not in os.environ
    sources = ["add_rms_norm.cpp", "add_rms_norm_cpu.cpp"] + ["add_rms_norm_kernel.cu"] * with_cuda
    cpp_extension.load(
        "add_rms_norm",
        [str(HERE / name) for name in sources],
        extra_cflags=["-O3", "-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"] + ["-DWITH_CUDA"] * with_cuda,
        extra_cuda_cflags=["-O3"] + ["-gencode=arch=compute_75,code=compute_75"] * ptx,
        extra_ldflags=["-Wl,--no-as-needed", "-ltorch"],
        extra_include_paths=[str(HERE.parent)],
        is_python_module=False,
    )
    register()
    return with_cuda


def add_rms_norm(a: Tensor, b: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return y and s: s = a + b, and y = s / sqrt(mean(s * s) + eps) * weight over the last dimension.

    a, b: one shape with any leading dimensions and strides; weight: [a.shape[-1]]. One device, and one dtype: float32,
    float64, float16 or bfloat16. With halves weight may be float32, and then its gradient is. Else RuntimeError.
    y and s have a's dtype; s is rounded once, sums are float32 (float64 for float64). Under CUDA's autocast all become
    float32; under a CPU's, a and b get their common dtype. Differentiable once, backward: y and s may have gradients;
    eps is a number and gets none. Two runs give the same bits. Call build() first.
    """
    if isinstance(eps, Tensor):  # torch would convert it, and drop its gradient
        raise RuntimeError("add_rms_norm: eps is a Tensor, expected a number, which has no gradient: pass eps.item()")
    return torch.ops.add_rms_norm.add_rms_norm(a, b, weight, eps)[:2]


def reference(a: Tensor, b: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """The same by torch's own operators."""
    s = a + b
    return F.rms_norm(s, weight.shape, weight, eps), s


def register() -> None:
    """The operator's Python side: fake kernels, gradient, vmap."""
    forward = torch.ops.add_rms_norm.add_rms_norm.default
    backward = torch.ops.add_rms_norm.add_rms_norm_backward.default

    def check(name: str, x: Tensor, a: Tensor) -> None:
        """As the C++ side checks: otherwise the fake kernel would promise what the operator refuses."""
        torch._check(x is not None, lambda: f"add_rms_norm: {name} is None, expected a Tensor")
        text = f"add_rms_norm: {name} is {x.dtype}{list(x.shape)}, expected {a.dtype}{list(a.shape)} on {a.device}"
        torch._check(x.dim() == a.dim() and x.dtype == a.dtype and x.device == a.device, lambda: text)
        for size, expected in zip(x.shape, a.shape, strict=True):  # each by itself: a size may depend on data
            torch._check(size == expected, lambda: text)

    def check_all(a: Tensor, weight: Tensor, **like_a: Tensor | None) -> Tensor:
        """Return rstd."""
        for name, x in like_a.items():
            if x is not None or name != "ds":
                check(name, x, a)
        is_known = a.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
        torch._check(is_known, lambda: f"add_rms_norm: {a.dtype} is not supported")
        torch._check(a.dim() > 0 and a.shape[-1] != 0, lambda: "add_rms_norm: a has no last dimension, or it is empty")
        wide = torch.promote_types(a.dtype, torch.float32)
        is_wide = weight is not None and weight.dtype == wide
        check("weight", weight, a.new_empty(a.shape[-1:], dtype=wide if is_wide else a.dtype))
        return a.new_empty(a.shape[:-1], dtype=wide)

    @torch.library.register_fake("add_rms_norm::add_rms_norm")
    def _(a: Tensor, b: Tensor, weight: Tensor, eps: float):
        rstd = check_all(a, weight, b=b)
        y, s = (torch.empty_like(a, memory_format=torch.contiguous_format) for _ in "ys")
        return y, s, rstd

    @torch.library.register_fake("add_rms_norm::add_rms_norm_backward")
    def _(dy: Tensor, ds: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor):
        check("rstd", rstd, check_all(s, weight, dy=dy, ds=ds))
        return torch.empty_like(s, memory_format=torch.contiguous_format), weight.new_empty(weight.shape)

    def setup_context(ctx, inputs, output) -> None:
        _, s, rstd = output
        ctx.mark_non_differentiable(rstd)
        ctx.set_materialize_grads(False)  # an unused output's gradient is None: no tensor of zeros to make and to read
        ctx.save_for_backward(s, inputs[2], rstd)

    def gradient(ctx, dy: Tensor | None, ds: Tensor | None, _):
        if dy is None:  # only s was used
            return ds, ds, None, None
        dx, dweight = backward(dy, ds, *ctx.saved_tensors)
        return dx, dx, dweight, None  # d(a + b) is the same for a and b

    def no_second_gradient(ctx, *grads):
        raise RuntimeError("add_rms_norm has no second derivative: its gradient is a kernel without one")

    torch.library.register_autograd("add_rms_norm::add_rms_norm", gradient, setup_context=setup_context)
    torch.library.register_autograd("add_rms_norm::add_rms_norm_backward", no_second_gradient)
    torch.library.register_autocast("add_rms_norm::add_rms_norm", "cuda", torch.float32)  # as F.rms_norm is

    def autocast_on_cpu(a: Tensor, b: Tensor, weight: Tensor, eps: float):
        """As the pair there: a + b has the common dtype, in which F.rms_norm computes with any weight."""
        dtype = torch.promote_types(a.dtype, b.dtype)
        is_wide = weight.dtype == torch.promote_types(dtype, torch.float32)
        with torch.autocast("cpu", enabled=False):
            return forward(a.to(dtype), b.to(dtype), weight if is_wide else weight.to(dtype), eps)

    LIBRARY.impl(forward, autocast_on_cpu, "AutocastCPU")

    def refuse_tangents(kernel, keyset, *args):
        """A check before torch's kernel at an Autograd key, which drops tangents: forward derivatives would be zero."""
        if any(isinstance(x, Tensor) and unpack_dual(x).tangent is not None for x in args):
            raise RuntimeError("add_rms_norm has no forward derivative (jvp, jacfwd): use torch.autograd.grad")
        return kernel.call_boxed(keyset, *args)

    def one_by_one(op, info, in_dims, *args):
        """vmap in the plainest way: one call per member; for an empty batch a call with zeros, for the shapes."""

        def member(i: int) -> list:
            pick = Tensor.sum if info.batch_size == 0 else functools.partial(Tensor.select, index=i)
            return [x if dim is None else pick(x, dim=dim) for x, dim in zip(args, in_dims, strict=True)]

        results = [op(*member(i)) for i in range(max(info.batch_size, 1))]
        return tuple(torch.stack(each)[: info.batch_size] for each in zip(*results, strict=True)), 0

    @torch.library.register_vmap(forward)
    def _(info, in_dims, a: Tensor, b: Tensor, weight: Tensor, eps: float):
        is_scalar = a.dim() == 0 or (a.dim() == 1 and in_dims[0] is not None)
        if is_scalar or in_dims[2] is not None:  # a scalar has no row: the operator says so
            return one_by_one(forward, info, in_dims, a, b, weight, eps)
        a, b = (
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((a, b), in_dims[:2], strict=True)
        )
        return forward(a, b, weight, eps), 0  # a batch is one more leading dimension

    # Each member has a gradient of the weight of its own.
    torch.library.register_vmap(backward, functools.partial(one_by_one, backward))

    for op in (forward, backward):
        for key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta"):
            check_and_call = functools.partial(refuse_tangents, torch.library.get_kernel(op, key))
            LIBRARY.impl(op, check_and_call, key, with_keyset=True)


def compare(device: str) -> None:
    """Values and gradients against torch; tests/test_add_rms_norm.py has gradcheck and opcheck as well."""
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
    with_cuda = build()
    compare("cpu")
    if torch.cuda.is_available() and with_cuda:
        compare("cuda")
    try:
        add_rms_norm(torch.ones(2, 3), torch.ones(2, 4), torch.ones(3))
    except RuntimeError as error:
        print("refused, as it should be:", str(error).splitlines()[0])


if __name__ == "__main__":
    main()
