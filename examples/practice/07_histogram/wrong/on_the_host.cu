// A cheat: the CPU computes.
// check says: no kernel
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void histogram(int* counts, const uint8_t* x, int64_t n) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += stride)
    atomicAdd(&counts[x[i]], 1);
}

extern "C" const char* launch_histogram(int* counts, const uint8_t* x, int64_t n, int64_t blocks,
                                        cudaStream_t stream) {
  for (int64_t i = 0; i < n; ++i) counts[x[i]] += 1;
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
