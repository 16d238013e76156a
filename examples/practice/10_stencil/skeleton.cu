// Exercise 10: see task.md. To grade it: python3 practice.py check 10
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256, kReach = 3;

__global__ void smooth(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (int64_t k = i - kReach; k <= i + kReach; ++k) {
    if (k >= 0 && k < n)
      sum += x[k];  // Here: seven loads per element. Let the block load each once.
  }
  y[i] = sum / (2 * kReach + 1);
}

extern "C" const char* launch_smooth(float* y, const float* x, int64_t n, cudaStream_t stream) {
  smooth<<<unsigned((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
