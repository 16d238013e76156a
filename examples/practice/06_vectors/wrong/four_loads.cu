// Right, but slow: four elements per thread, by four loads that each touch all sectors.
// check says: times as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void scale_vectors(float* y, const float* x, int64_t n) {
  const int64_t first = 4 * (blockIdx.x * int64_t(blockDim.x) + threadIdx.x);
  if (first + 4 <= n) {
    for (int k = 0; k < 4; ++k) y[first + k] = 0.5f * x[first + k];
  } else {
    for (int64_t i = first; i < n; ++i) y[i] = 0.5f * x[i];
  }
}

__global__ void scale(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = 0.5f * x[i];
}

extern "C" const char* launch_scale(float* y, const float* x, int64_t n, cudaStream_t stream) {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y);
  if (addresses % 16 == 0)
    scale_vectors<<<unsigned((n + 1023) / 1024), 256, 0, stream>>>(y, x, n);
  else
    scale<<<unsigned((n + 255) / 256), 256, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
