// A cheat: a kernel that does nothing runs, and the CPU computes.
// check says: host access
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void reverse(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  (void)i;
}

extern "C" const char* launch_reverse(float* y, const float* x, int64_t n, cudaStream_t stream) {
  if (n == 0) return nullptr;  // a grid of no blocks is an error
  const int64_t blocks = (n + 255) / 256;
  reverse<<<unsigned(blocks), 256, 0, stream>>>(y, x, n);
  for (int64_t i = 0; i < n; ++i) y[i] = x[n - 1 - i];
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
