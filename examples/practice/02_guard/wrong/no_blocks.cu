// Right for one size: all but 0.
// check says: invalid configuration argument
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void reverse(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[n - 1 - i];
}

extern "C" const char* launch_reverse(float* y, const float* x, int64_t n, cudaStream_t stream) {
  const int64_t blocks = (n + 255) / 256;
  reverse<<<unsigned(blocks), 256, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
