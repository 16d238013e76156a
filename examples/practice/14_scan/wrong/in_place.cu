// Fast, but wrong: in shared memory, but a thread reads what another one has already changed.
// check says: race
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 1024, kWarps = kThreads / 32;

__global__ void scan(int* y, const int* x, int width) {
  __shared__ int sums[kThreads];
  const int64_t start = blockIdx.x * int64_t(width);
  const int i = threadIdx.x;
  sums[i] = i < width ? x[start + i] : 0;
  __syncthreads();
  for (int distance = 1; distance < kThreads; distance *= 2) {
    if (i >= distance) sums[i] += sums[i - distance];
    __syncthreads();
  }
  if (i < width) y[start + i] = sums[i];
}

extern "C" const char* launch_scan(int* y, const int* x, int64_t rows, int64_t width,
                                   cudaStream_t stream) {
  if (width > kThreads) return "a row has at most 1024 elements";
  scan<<<unsigned(rows), kThreads, 0, stream>>>(y, x, int(width));
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
