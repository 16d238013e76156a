"""Solutions of docs/11_your_own.md."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workshop import copy_of_project, edit, main, need_nvcc, run, show

WIDE = """
  constexpr int kWidth = 16 / sizeof(T);
  struct alignas(16) Pack {
    T at[kWidth];
  };
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, first = i * kWidth;
  const bool is_aligned = (uintptr_t(a) | uintptr_t(b) | uintptr_t(y)) % 16 == 0;
  const bool is_whole = is_aligned && first + kWidth <= n;
  Pack p, q;
  if (is_whole) {
    p = reinterpret_cast<const Pack*>(a)[i];
    q = reinterpret_cast<const Pack*>(b)[i];
  } else {
    for (int k = 0; k < kWidth && first + k < n; ++k) p.at[k] = a[first + k], q.at[k] = b[first + k];
  }
  for (int k = 0; k < kWidth; ++k) {
    const Wide x = scale * (Wide(p.at[k]) + Wide(q.at[k]));
    p.at[k] = T(x < 0 ? Wide(0) : x);
  }
  if (is_whole) {
    reinterpret_cast<Pack*>(y)[i] = p;
  } else {
    for (int k = 0; k < kWidth && first + k < n; ++k) y[first + k] = p.at[k];
  }
}
"""


@contextmanager
def starter() -> Iterator[Path]:
    """The starter's folder, in a copy of the project."""
    with copy_of_project() as copy:
        yield copy / "examples" / "3_starter"


def build_and_test(folder: Path, status: int = 0) -> str:
    run("setup.py", "build_ext", "--inplace", folder=folder)
    options = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-c", "pyproject.toml", "--rootdir", ".")
    return run("-m", "pytest", *options, "tests", folder=folder, status=status)


def exercise_1():
    """Five places: both kernels, the gradient, the formula for torch.func, and the expected value of the tests."""
    with starter() as folder:
        for name in ("scaled_relu.cpp", "scaled_relu_kernel.cu"):
            edit(folder / "csrc" / name, "T(x < 0 ? Wide(0) : x);", "T(x < 0 ? x * Wide(0.1) : x);")
        python = folder / "scaled_relu" / "__init__.py"
        edit(python, "(grad * ctx.scale).masked_fill(y <= 0, 0)", "torch.where(y <= 0, 0.1 * grad, grad) * ctx.scale")
        edit(
            python, "return torch.relu(scale * (a + b))", "return torch.nn.functional.leaky_relu(scale * (a + b), 0.1)"
        )
        tests = folder / "tests" / "test_scaled_relu.py"
        edit(tests, "return torch.relu(scale", "return torch.nn.functional.leaky_relu(scale")
        edit(tests, "b.to(wide))).to(a.dtype)", "b.to(wide)), 0.1).to(a.dtype)")
        show(build_and_test(folder), "passed", " in ")


def exercise_2():
    """16 bytes per thread. A view that does not start at a multiple of 16 bytes goes element by element."""
    need_nvcc()
    with starter() as folder:
        kernel = folder / "csrc" / "scaled_relu_kernel.cu"
        text = kernel.read_text()
        begin, end = (
            text.index("  const int64_t i = blockIdx.x"),
            text.index("template <typename T, typename Wide>\nconst"),
        )
        edit(kernel, text[begin:end], WIDE.lstrip("\n") + "\n")
        edit(kernel, "unsigned((n + 255) / 256)", "unsigned((n * sizeof(T) + 4095) / 4096)")
        tests = folder / "tests" / "test_scaled_relu.py"
        edit(tests, "for view in (lambda x: x.t(),", "for view in (lambda x: x.view(-1)[1:], lambda x: x.t(),")
        show(build_and_test(folder), "passed", " in ")


def exercise_3():
    """opcheck in test_contract notices, because it also gets a transposed tensor."""
    with starter() as folder:
        edit(
            folder / "scaled_relu" / "__init__.py",
            "empty_like(a, memory_format=torch.contiguous_format)",
            "empty_like(a)",
        )
        show(build_and_test(folder, status=1), "FAILED")


if __name__ == "__main__":
    sys.exit(main())
