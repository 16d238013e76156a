// Right, but slow: the first block computes all elements, and the others have no work.
// check says: one warp needs
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void map(float* y, const float* x) {
  if (blockIdx.x > 0) return;
  const int64_t n = gridDim.x * int64_t(blockDim.x);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = 2 * x[i] + 1;
}

extern "C" const char* launch_map(float* y, const float* x, int64_t n, cudaStream_t stream) {
  map<<<unsigned(n / 256), 256, 0, stream>>>(y, x);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
