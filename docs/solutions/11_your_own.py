"""Solutions of docs/11_your_own.md."""

import os
import sys
import tempfile

import torch
from torch import Tensor
from workshop import ROOT, copy_of_project, edit, main, need_nvcc, run, show

sys.path.insert(0, str(ROOT / "examples" / "fused"))

WIDE = """
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  struct alignas(16) Pack { T at[16 / sizeof(T)]; };
  const int64_t width = 16 / sizeof(T), first = i * width;
  const bool aligned = (uintptr_t(a) | uintptr_t(b) | uintptr_t(y)) % 16 == 0;
  Pack p, q;
  if (aligned && first + width <= n) {
    p = reinterpret_cast<const Pack*>(a)[i];
    q = reinterpret_cast<const Pack*>(b)[i];
  } else {
    for (int k = 0; k < width && first + k < n; ++k) p.at[k] = a[first + k], q.at[k] = b[first + k];
  }
  for (int k = 0; k < width; ++k) {
    const T x = scale * (p.at[k] + q.at[k]);
    p.at[k] = x < 0 ? T(0) : x;
  }
  if (aligned && first + width <= n) {
    reinterpret_cast<Pack*>(y)[i] = p;
  } else {
    for (int k = 0; k < width && first + k < n; ++k) y[first + k] = p.at[k];
  }
}
"""


def exercise_1():
    """`Tensor scale` in the schema, and a third gradient: the sum of grad * (a + b) where y > 0."""
    import fused

    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCH_EXTENSIONS_DIR"] = cache
        fused.build()

    @torch.library.custom_op("fused::scaled_by_tensor", mutates_args=())
    def scaled(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        return torch.ops.fused.add_scale_relu(a, b, scale.item())

    @scaled.register_fake
    def _(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        return torch.empty_like(a, memory_format=torch.contiguous_format)

    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs, output)

    def backward(ctx, grad: Tensor):
        a, b, scale, y = ctx.saved_tensors
        passed = grad * (y > 0)
        return passed * scale, passed * scale, (passed * (a + b)).sum()

    scaled.register_autograd(backward, setup_context=setup_context)
    print("   schema:", torch.ops.fused.scaled_by_tensor.default._schema)
    a, b = (torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in "ab")
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(scaled, (a, b, scale))
    assert torch.autograd.gradgradcheck(scaled, (a, b, scale))
    print("   gradcheck and gradgradcheck: right, for scale, too")


def exercise_2():
    """16 bytes a thread; a view that does not start at a multiple of 16 bytes goes element by element."""
    need_nvcc()
    with copy_of_project() as copy:
        folder = copy / "examples" / "fused"
        kernel = folder / "fused_kernel.cu"
        text = kernel.read_text()
        begin, end = text.index("  const int64_t i = blockIdx.x"), text.index("template <typename T>\nstatic")
        edit(kernel, text[begin:end], WIDE.lstrip("\n") + "\n")
        edit(kernel, "unsigned((n + 255) / 256), 256", "unsigned((n + 1023) / 1024), 256 * sizeof(T) / 4")
        views = "a, b = torch.randn(2, 2101, device=device)[:, 1:].view(2, 300, 7)"
        edit(folder / "fused.py", "a, b = torch.randn(2, 300, 7, device=device)", views)
        show(run("examples/fused/fused.py", folder=copy), "the same as torch")


def exercise_3():
    """main() has contiguous inputs only, so a fake kernel that keeps strides passes; opcheck with x.t() tells."""
    with copy_of_project() as copy:
        file = copy / "examples" / "fused" / "fused.py"
        edit(file, "torch.empty_like(a, memory_format=torch.contiguous_format)", "torch.empty_like(a)")
        run("examples/fused/fused.py", folder=copy, ADD2_WITH_CUDA="0")
        edit(
            file,
            "        torch.library.opcheck(torch.ops.fused.add_scale_relu.default, (x, y, 0.5))",
            "        torch.library.opcheck(torch.ops.fused.add_scale_relu.default, (x.t(), y.t(), 0.5))",
        )
        show(run("examples/fused/fused.py", folder=copy, status=1, ADD2_WITH_CUDA="0").strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
