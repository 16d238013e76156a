// Exercise 4: see task.md. To grade it: python3 practice.py check 4
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void outer(float* y, const float* a, const float* b, int64_t height, int64_t width) {
  // Here: a thread computes y[row][column]. In memory, rows of y follow each other.
}

extern "C" const char* launch_outer(float* y, const float* a, const float* b, int64_t height,
                                    int64_t width, cudaStream_t stream) {
  const dim3 threads(32, 8);
  // Here: enough to cover y. blocks.x goes up to 2^31 - 1, blocks.y to 65535.
  const dim3 blocks(1, 1);
  outer<<<blocks, threads, 0, stream>>>(y, a, b, height, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
