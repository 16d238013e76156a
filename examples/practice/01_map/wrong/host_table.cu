// A cheat: the CPU computes a table, and the kernel copies it.
// check says: host access
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void map(float* y, const float* x) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  y[i] = x[i];
}

extern "C" const char* launch_map(float* y, const float* x, int64_t n, cudaStream_t stream) {
  static float table[1 << 20];
  for (int64_t i = 0; i < n; ++i) table[i] = 2 * x[i] + 1;
  map<<<unsigned(n / 256), 256, 0, stream>>>(y, table);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
