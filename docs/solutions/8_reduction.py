"""Solutions of docs/8_reduction.md."""

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from workshop import ROOT, main, need_nvcc

from lab import toolchain

HEAD = """
#include "add_rms_norm_kernel.cuh"
constexpr int kThreads = 512;
using T = __nv_bfloat16;
"""

ROW_SUM = """
__global__ void row_sum(float* out, const T* x, int64_t width) {
  __shared__ float shared[kThreads / 32];
  const T* row = x + blockIdx.x * width;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += to_float(row[i]);
  sum = sum_over_row<kThreads>(sum, shared);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

extern "C" void launch(float* out, const T* x, int64_t rows, int64_t width, cudaStream_t stream) {
  row_sum<<<unsigned(rows), kThreads, 0, stream>>>(out, x, width);
}
"""

SOFTMAX = """
__device__ float max_over_row(float x, float* shared) {  // as sum_over_row
  for (int distance = 16; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  for (int i = 0; i < kThreads / 32; ++i) x = fmaxf(x, shared[i]);
  return x;
}

__global__ void softmax(T* y, const T* x, int64_t width) {
  __shared__ float shared[2][kThreads / 32];  // one for each reduction
  const int64_t start = blockIdx.x * width;
  float most = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) most = fmaxf(most, to_float(x[start + i]));
  most = max_over_row(most, shared[0]);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += expf(to_float(x[start + i]) - most);
  sum = sum_over_row<kThreads>(sum, shared[1]);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    round_to(y[start + i], expf(to_float(x[start + i]) - most) / sum);
  }
}

extern "C" void launch(T* y, const T* x, int64_t rows, int64_t width, cudaStream_t stream) {
  softmax<<<unsigned(rows), kThreads, 0, stream>>>(y, x, width);
}
"""


def compile_kernel(code: str, folder: Path) -> ctypes.CDLL:
    """The launcher as a C function: no torch in it, so nvcc is all it takes."""
    source, library = folder / "kernel.cu", folder / "kernel.so"
    source.write_text(HEAD + code)
    arch = "native" if torch.cuda.is_available() else "compute_75"
    command = [toolchain.find_nvcc(), "-O3", "-std=c++17", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC"]
    command += ["-cudart", "static", "-I", ROOT / "examples" / "4_add_rms_norm", source, "-o", library]
    subprocess.run(command, check=True)
    print("   compiled")
    return ctypes.CDLL(str(library))


def launch(library: ctypes.CDLL, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (out, x)]
    library.launch(*pointers, ctypes.c_int64(len(x)), ctypes.c_int64(x.shape[1]), stream)
    return out


def exercise_1():
    """A row sum: one tensor read, next to nothing written."""
    print(f"   floor: {16384 * 4096 * 2 / 4.8e12 * 1e6:.0f} us")
    need_nvcc()
    with tempfile.TemporaryDirectory() as folder:
        library = compile_kernel(ROW_SUM, Path(folder))
        if torch.cuda.is_available():
            x = torch.randn(100, 4001, device="cuda", dtype=torch.bfloat16)
            found = launch(library, torch.empty(100, device="cuda"), x)
            torch.testing.assert_close(found, x.float().sum(1), rtol=1e-4, atol=1e-3)
            print("   the same as torch's sum")


def exercise_2():
    """A softmax: the maximum is the second reduction."""
    need_nvcc()
    with tempfile.TemporaryDirectory() as folder:
        library = compile_kernel(SOFTMAX, Path(folder))
        if torch.cuda.is_available():
            x = 100 * torch.randn(100, 4001, device="cuda", dtype=torch.bfloat16)  # exp(x) itself would overflow
            torch.testing.assert_close(launch(library, torch.empty_like(x), x), torch.softmax(x, 1))
            print("   the same as torch's softmax")


def exercise_3():
    """1000 ones in bfloat16 are 256."""
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        total = torch.zeros((), dtype=dtype)
        for _ in range(1000):
            total += 1
        found[dtype] = total.item()
        print(f"   {dtype}: {total.item():g}")
    assert found == {torch.bfloat16: 256, torch.float32: 1000}


if __name__ == "__main__":
    sys.exit(main())
