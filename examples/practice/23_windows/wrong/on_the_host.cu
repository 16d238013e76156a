// A cheat: the CPU computes.
// check says: no kernel
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void windows(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= (n + 1) / 2) return;
  float largest = x[2 * i];
  if (2 * i + 1 < n) largest = fmaxf(largest, x[2 * i + 1]);
  if (2 * i + 2 < n) largest = fmaxf(largest, x[2 * i + 2]);
  y[i] = largest;
}

extern "C" const char* launch_windows(float* y, const float* x, int64_t n, cudaStream_t stream) {
  for (int64_t i = 0; i < (n + 1) / 2; ++i) {
    y[i] = x[2 * i];
    for (int64_t k = 2 * i; k < n && k <= 2 * i + 2; ++k) y[i] = fmaxf(y[i], x[k]);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
