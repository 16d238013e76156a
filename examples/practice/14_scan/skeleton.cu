// Exercise 14: see task.md. To grade it: python3 practice.py check 14
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 1024, kWarps = kThreads / 32;

__global__ void scan(int* y, const int* x, int width) {
  const int64_t start = blockIdx.x * int64_t(width);
  // Here: one thread works, and 1023 wait.
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int i = 0; i < width; ++i) {
      sum += x[start + i];
      y[start + i] = sum;
    }
  }
}

extern "C" const char* launch_scan(int* y, const int* x, int64_t rows, int64_t width,
                                   cudaStream_t stream) {
  if (width > kThreads) return "a row has at most 1024 elements";
  scan<<<unsigned(rows), kThreads, 0, stream>>>(y, x, int(width));
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
