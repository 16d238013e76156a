// Right, but slow: each thread adds all elements before its own.
// check says: as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 1024, kWarps = kThreads / 32;

__global__ void scan(int* y, const int* x, int width) {
  const int64_t start = blockIdx.x * int64_t(width);
  const int i = threadIdx.x;
  if (i >= width) return;
  int sum = 0;
  for (int k = 0; k <= i; ++k) sum += x[start + k];
  y[start + i] = sum;
}

extern "C" const char* launch_scan(int* y, const int* x, int64_t rows, int64_t width,
                                   cudaStream_t stream) {
  if (width > kThreads) return "a row has at most 1024 elements";
  scan<<<unsigned(rows), kThreads, 0, stream>>>(y, x, int(width));
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
