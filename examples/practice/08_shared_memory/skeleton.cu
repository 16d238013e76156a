// Exercise 8: see task.md. To grade it: python3 practice.py check 8
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256;

__global__ void planes(float* y, const float* x, int64_t n) {
  // Here: through shared memory, so that neighbours read neighbours.
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  for (int c = 0; c < 3; ++c) {
    if (i < n) y[c * n + i] = x[3 * i + c];
  }
}

extern "C" const char* launch_planes(float* y, const float* x, int64_t n, cudaStream_t stream) {
  planes<<<unsigned((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
