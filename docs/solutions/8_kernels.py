"""Solutions of docs/8_kernels.md."""

import torch
from workshop import copy_of_project, edit, main, need_gpus, need_nvcc, run, show

VECTORS = """
  struct alignas(16) Four { T at[16 / sizeof(T)]; };  // float4, for any T
  const Index width = 16 / sizeof(T), first = blockIdx.x * Index(blockDim.x) + threadIdx.x;
  const Index step = Index(gridDim.x) * blockDim.x;
  for (Index i = first; i < n / width; i += step) {
    const Four x = reinterpret_cast<const Four*>(a)[i], y = reinterpret_cast<const Four*>(b)[i];
    Four z;
    for (int k = 0; k < width; ++k) z.at[k] = add(x.at[k], y.at[k]);
    reinterpret_cast<Four*>(c)[i] = z;
  }
  for (Index i = n / width * width + first; i < n; i += step) c[i] = add(a[i], b[i]);
}
"""


def exercise_1():
    """Little's law: a thread's life, and the bytes that it must carry in it."""
    alive, peak = 132 * 2048, 4.8e12
    life = alive * 6 / 1.65e12  # float16: two bytes from each input, two to the result
    needed = peak * life / alive
    print(f"   {life * 1e6:.2f} us, {needed:.0f} bytes a thread for {peak / 1e12} TB/s")
    print(f"   one float32 carries {3 * 4}: at most {alive * 3 * 4 / life / 1e12:.1f} TB/s; a vector carries {3 * 16}")
    assert 3 * 4 < needed < 3 * 16


def exercise_2():
    """Without the division; then with 16 bytes a thread, which makes it nearly as fast as "vector"."""
    need_nvcc()
    with copy_of_project() as copy:
        kernel, launcher = copy / "kernel" / "add2_kernel.cuh", copy / "kernel" / "add2_kernel.cu"
        before = kernel.read_text()
        head = "__global__ void add2_plain(T* c, const T* a, const T* b, Index n) {"
        body = before[before.index(head) + len(head) :]
        body = body[: body.index("\n}\n") + 3]
        # Without a GPU the kernels are compiled, and not run.
        words = ("--kernels", "--sizes", "2^22") if torch.cuda.is_available() else ("--sizes", "100")
        edit(kernel, head, f"{head}\n#pragma unroll 1")
        if torch.cuda.is_available():
            show(run("time.py", *words, folder=copy), "call  ", "plain", "vector")
        edit(kernel, f"{head}\n#pragma unroll 1{body}", head + VECTORS)
        edit(launcher, "add2_plain<<<blocks(n, 1024), 1024", "add2_plain<<<blocks(n, 1024 * (16 / sizeof(T))), 1024")
        show(run("time.py", *words, folder=copy), "call  ", "plain", "vector")


def exercise_3():
    """One element more is one block more, of 4097: as good as nothing."""
    need_gpus()
    show(run("time.py", "--sizes", "2^24,16777217"), "elements", "torch_launch_add2")


main()
