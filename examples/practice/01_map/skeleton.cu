// Exercise 1: see task.md. To grade it: python3 practice.py check 1
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void map(float* y, const float* x) {
  // Here: one element of y per thread. threadIdx.x, blockIdx.x and blockDim.x say which one.
}

extern "C" const char* launch_map(float* y, const float* x, int64_t n, cudaStream_t stream) {
  map<<<unsigned(n / 256), 256, 0, stream>>>(y, x);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
