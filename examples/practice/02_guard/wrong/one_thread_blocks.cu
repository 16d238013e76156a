// Right, but slow: a block of one thread per element: a warp with one thread that works.
// check says: as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void reverse(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[n - 1 - i];
}

extern "C" const char* launch_reverse(float* y, const float* x, int64_t n, cudaStream_t stream) {
  if (n == 0) return nullptr;  // a grid of no blocks is an error
  reverse<<<unsigned(n), 1, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
