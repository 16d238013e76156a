// Right, but slow: a grid of one block, whose threads take all elements in a loop.
// check says: one warp needs
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void reverse(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  for (int64_t j = i; j < n; j += blockDim.x) y[j] = x[n - 1 - j];
}

extern "C" const char* launch_reverse(float* y, const float* x, int64_t n, cudaStream_t stream) {
  if (n == 0) return nullptr;  // a grid of no blocks is an error
  const int64_t blocks = 1;
  reverse<<<unsigned(blocks), 256, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
