// A cheat: the launcher computes on the CPU, and starts no kernel.
// check says: no kernel
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void map(float* y, const float* x) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  y[i] = 2 * x[i] + 1;
}

extern "C" const char* launch_map(float* y, const float* x, int64_t n, cudaStream_t stream) {
  for (int64_t i = 0; i < n; ++i) y[i] = 2 * x[i] + 1;
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
