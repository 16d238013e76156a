// Exercise 2: see task.md. To grade it: python3 practice.py check 2
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void reverse(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  y[i] = x[n - 1 - i];
}

extern "C" const char* launch_reverse(float* y, const float* x, int64_t n, cudaStream_t stream) {
  const int64_t blocks = n / 256;  // Here: enough for any n?
  reverse<<<unsigned(blocks), 256, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
