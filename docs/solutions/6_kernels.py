"""Solutions of docs/kernels.md."""

import sys

import torch
from workshop import copy_of_project, edit, main, need_gpus, need_nvcc, run, show

VECTORS = """
  struct alignas(16) Four { T at[16 / sizeof(T)]; };  // float4, for any T
  const int64_t width = 16 / sizeof(T), first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < n / width; i += step) {
    const Four x = reinterpret_cast<const Four*>(a)[i], y = reinterpret_cast<const Four*>(b)[i];
    Four z;
    for (int k = 0; k < width; ++k) z.at[k] = add(x.at[k], y.at[k]);
    reinterpret_cast<Four*>(c)[i] = z;
  }
  for (int64_t i = n / width * width + first; i < n; i += step) c[i] = add(a[i], b[i]);
}
"""


def exercise_1():
    """Little's law."""
    under_way = 4.8e12 * 600e-9
    each = under_way / 132
    print(f"   {under_way / 1e6:.1f} MB under way, {each / 1e3:.0f} KB a multiprocessor")
    print(f"   {each / 2048 / 16:.2f} loads of 16 bytes a thread")
    print(f"   two loads a thread: {2048 * 2 * 16 >> 10} KB of 16 bytes each, {2048 * 2 * 4 >> 10} KB of 4")
    assert 2048 * 2 * 4 < each < 2048 * 2 * 16


def exercise_2():
    """A loop over 16 bytes makes the plain kernel nearly as fast as "vector"."""
    need_nvcc()
    with copy_of_project() as copy:
        kernel = copy / "kernel" / "add2_kernel.cu"
        before = kernel.read_text()
        head = "__global__ void add2_plain(T* c, const T* a, const T* b, int64_t n) {"
        body = before[before.index(head) + len(head) :]
        body = body[: body.index("\n}\n") + 3]
        arguments = ("time.py", "--kernels", "--sizes", "2^22")
        if torch.cuda.is_available():
            show(run(*arguments, folder=copy), "call  ", "plain", "vector")
        edit(kernel, head + body, head + VECTORS)
        edit(kernel, "add2_plain<<<blocks(1024), 1024", "add2_plain<<<blocks(1024 * kElements), 1024")
        arguments = arguments if torch.cuda.is_available() else ("time.py", "--sizes", "100")  # compiled, at least
        show(run(*arguments, folder=copy), "call  ", "plain", "vector")


def exercise_3():
    """One element more is one block more, of 4097: as good as nothing."""
    need_gpus()
    show(run("time.py", "--sizes", "2^24,16777217"), "elements", "torch_launch_add2")


if __name__ == "__main__":
    sys.exit(main())
