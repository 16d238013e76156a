// Right, but slow: each thread counts one value, so each block reads all of its part 256 times.
// check says: as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void histogram(int* counts, const uint8_t* x, int64_t n) {
  int found = 0;
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) found += x[i] == threadIdx.x;
  atomicAdd(&counts[threadIdx.x], found);
}

extern "C" const char* launch_histogram(int* counts, const uint8_t* x, int64_t n, int64_t blocks,
                                        cudaStream_t stream) {
  histogram<<<unsigned(blocks), 256, 0, stream>>>(counts, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
