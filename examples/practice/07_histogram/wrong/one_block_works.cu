// Right, but slow: the first block counts all values, and the others have no work.
// check says: one warp needs
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void histogram(int* counts, const uint8_t* x, int64_t n) {
  if (blockIdx.x > 0) return;
  const int64_t stride = blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += stride)
    atomicAdd(&counts[x[i]], 1);
}

extern "C" const char* launch_histogram(int* counts, const uint8_t* x, int64_t n, int64_t blocks,
                                        cudaStream_t stream) {
  histogram<<<unsigned(blocks), 256, 0, stream>>>(counts, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
