"""Solutions of docs/5_your_own.md."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from workshop import ROOT, main

FORMULA = """
template <typename Wide>
C10_HOST_DEVICE Wide formula(Wide x, Wide scale) {
  return std::tanh(scale * x);
}

template <typename Wide>
C10_HOST_DEVICE Wide formula_backward(Wide grad, Wide x, Wide scale) {
  const Wide y = std::tanh(scale * x);
  return grad * scale * (1 - y * y);
}
"""

BY_TORCH = """
def _by_torch(x: Tensor, scale: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.tanh(scale * wide).to(x.dtype)


def _backward_by_torch(grad: Tensor, x: Tensor, scale: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    y = torch.tanh(scale * wide)
    return (grad.to(wide.dtype) * scale * (1 - y * y)).to(x.dtype)
"""

TESTS = """
def by_torch(x, scale):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.tanh(scale * wide).to(x.dtype)
"""

BENCHMARK = """
def forward_by_torch(x: Tensor) -> Tensor:
    return torch.tanh(SCALE * x)


def backward_by_torch(grad: Tensor, x: Tensor) -> Tensor:
    return grad * SCALE * (1 - torch.tanh(SCALE * x).square())
"""

LIST = r"""
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

void check(const Tensor& x, const Tensor& like) {
  const bool is_right = x.is_cpu() && x.scalar_type() == ScalarType::Float && x.is_contiguous();
  if (!is_right || !x.sizes().equals(like.sizes())) {
    throw std::runtime_error("pick: expected contiguous float32 tensors of one shape on the CPU");
  }
}

std::tuple<Tensor, Tensor> pick(std::vector<Tensor> xs, std::optional<Tensor> bias,
                                std::string mode) {
  if (mode != "max" && mode != "min") {
    throw std::runtime_error("pick: mode is \"" + mode + "\", expected \"max\" or \"min\"");
  }
  for (const Tensor& x : xs) check(x, xs[0]);
  if (bias) check(*bias, xs[0]);
  Tensor y = torch::stable::new_empty(xs[0], xs[0].sizes());
  Tensor index = torch::stable::new_empty(y, y.sizes(), ScalarType::Long);
  for (int64_t i = 0; i < y.numel(); ++i) {
    int64_t best = 0;
    auto at = [&](int64_t k) { return static_cast<const float*>(xs[k].const_data_ptr())[i]; };
    for (int64_t k = 1; k < int64_t(xs.size()); ++k) {
      if (mode == "max" ? at(k) > at(best) : at(k) < at(best)) best = k;
    }
    const float b = bias ? static_cast<const float*>(bias->const_data_ptr())[i] : 0;
    static_cast<float*>(y.mutable_data_ptr())[i] = at(best) + b;
    static_cast<int64_t*>(index.mutable_data_ptr())[i] = best;
  }
  return {y, index};
}

STABLE_TORCH_LIBRARY(pick, m) {
  m.def("pick(Tensor[] xs, Tensor? bias, str mode) -> (Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(pick, CPU, m) { m.impl("pick", TORCH_BOX(&pick)); }
"""


def put(path: Path, first: str, last: str, text: str) -> None:
    """Replace the lines of a file from the one that begins with `first` to the one before `last`."""
    before, _, rest = path.read_text().partition(f"\n{first}")
    assert rest, f"{path}: {first}"
    path.write_text(f"{before}\n{text.strip()}\n\n\n{rest[rest.index(last) :]}")


def exercise_1():
    """The starter becomes tanh(scale * x): four places, then its tests pass."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(ROOT / "examples" / "starter", Path(folder, "my_op")))
        env = os.environ | {"PYTHONPATH": "src"}

        def python(*words):
            subprocess.run([sys.executable, *words], cwd=copy, env=env, check=True, stdout=subprocess.DEVNULL)

        python("rename.py", "my_op")
        put(copy / "csrc/my_op.h", "template <typename Wide>", "// Calls run", FORMULA)
        put(copy / "src/my_op/__init__.py", "def _by_torch", "# One of two lines", BY_TORCH)
        put(copy / "tests/test_my_op.py", "def by_torch", "def assert_same", TESTS)
        put(copy / "benchmark.py", "def forward_by_torch", "def median_us", BENCHMARK)
        python("setup.py", "-q", "build_ext", "--inplace")
        python("-m", "pytest", "-q", "-p", "no:cacheprovider")
    print("   built, tested: values, first and second derivatives, torch.compile, refusals")


def exercise_2():
    """The gradient of tanh from the rounded result and from x, in bfloat16."""
    x = torch.linspace(0, 3, 1001).bfloat16()
    exact = 1 - x.double().tanh().square()
    from_y = 1 - x.float().tanh().bfloat16().double().square()  # y, as it is stored
    from_x = 1 - x.float().tanh().double().square()
    worst = [((found - exact) / exact).abs().max().item() for found in (from_y, from_x)]
    print("   largest relative error: from y {:.0%}, from x {:.0e}".format(*worst))
    assert 0.2 < worst[0] < 1
    assert worst[1] < 1e-4


def save(ctx, inputs, output):
    _, index = output
    ctx.mark_non_differentiable(index)
    ctx.save_for_backward(index)


def backward(ctx, grad, _):  # the gradient of each result; nothing comes for index
    (index,) = ctx.saved_tensors
    of_xs, of_bias, _ = ctx.needs_input_grad  # a list of bools for the list
    return [grad * (index == k) for k in range(len(of_xs))], grad if of_bias else None, None


def exercise_3():
    """A list, an optional tensor, a string; two results, of which one has no gradient."""
    sys.path.insert(0, str(ROOT / "examples"))
    from common import operators

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "pick.cpp")
        source.write_text(LIST)
        operators.load("pick", [source], ())
    op = torch.ops.pick.pick.default

    def fake(xs, bias, mode):
        return xs[0].new_empty(xs[0].shape), xs[0].new_empty(xs[0].shape, dtype=torch.int64)

    torch.library.register_fake(op, fake)
    torch.library.register_autograd(op, backward, setup_context=save)

    xs, bias = torch.randn(3, 4, 5).unbind(), torch.randn(4, 5)
    leaves = [x.clone().requires_grad_() for x in (*xs, bias)]
    for mode in ("max", "min"):
        for call in (op, torch.compile(op, fullgraph=True)):
            y, index = call(leaves[:3], leaves[3], mode)
            right = getattr(torch.stack(leaves[:3]), mode)(0)
            assert torch.equal(y, right.values + bias)
            assert torch.equal(index, right.indices)
            assert not index.requires_grad
            found, expected = (torch.autograd.grad(z, leaves, bias) for z in (y, right.values + leaves[3]))
            torch.testing.assert_close(found, expected)
    assert torch.equal(op(xs, None, "max")[0], torch.stack(xs).amax(0))
    torch.library.opcheck(op, (leaves[:3], leaves[3], "max"))
    print("   values and gradients are torch's, compiled, too")


main()
