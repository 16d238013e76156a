// Right, but slow: neighbouring threads take elements that lie far apart.
// check says: times as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void map(float* y, const float* x) {
  const int64_t i = threadIdx.x * int64_t(gridDim.x) + blockIdx.x;
  y[i] = 2 * x[i] + 1;
}

extern "C" const char* launch_map(float* y, const float* x, int64_t n, cudaStream_t stream) {
  map<<<unsigned(n / 256), 256, 0, stream>>>(y, x);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
