// Right, but slow: without shared memory: each element is loaded twice.
// check says: as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256;

__global__ void differences(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < n) {
    float before = 0;
    if (i > 0) before = x[i - 1];
    y[i] = x[i] - before;
  }
}

extern "C" const char* launch_differences(float* y, const float* x, int64_t n,
                                          cudaStream_t stream) {
  differences<<<unsigned((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
