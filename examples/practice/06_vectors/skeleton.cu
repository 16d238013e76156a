// Exercise 6: see task.md. To grade it: python3 practice.py check 6
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void scale(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = 0.5f * x[i];
}

extern "C" const char* launch_scale(float* y, const float* x, int64_t n, cudaStream_t stream) {
  // Here: another kernel if both addresses are multiples of 16. It loads and stores float4.
  scale<<<unsigned((n + 255) / 256), 256, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
