// Fast, but wrong: threads without an element leave, and the barrier waits for all threads.
// check says: 24 of 256 threads did not reach it
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256;

__global__ void differences(float* y, const float* x, int64_t n) {
  __shared__ float tile[kThreads];
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= n) return;
  tile[threadIdx.x] = x[i];
  __syncthreads();
  {
    float before = 0;
    if (threadIdx.x > 0) {
      before = tile[threadIdx.x - 1];
    } else if (i > 0) {
      before = x[i - 1];
    }
    y[i] = tile[threadIdx.x] - before;
  }
}

extern "C" const char* launch_differences(float* y, const float* x, int64_t n,
                                          cudaStream_t stream) {
  differences<<<unsigned((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
