// Right, but slow: the first block takes all elements, and the others have no work.
// check says: one warp needs
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void relu(float* y, const float* x, int64_t n) {
  if (blockIdx.x > 0) return;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = fmaxf(x[i], 0);
}

extern "C" const char* launch_relu(float* y, const float* x, int64_t n, int64_t blocks,
                                   cudaStream_t stream) {
  relu<<<unsigned(blocks), 256, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
