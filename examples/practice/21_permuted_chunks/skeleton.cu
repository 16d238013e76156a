// Exercise 21: see task.md. To grade it: python3 practice.py check 21
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256;

__global__ void permute(float* y, const float* x, const int* order, int64_t chunks) {
  __shared__ float chunk[kThreads];
  const int from = order[threadIdx.x];
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const int64_t first = c * kThreads;
    chunk[threadIdx.x] = x[first + threadIdx.x];
    __syncthreads();
    y[first + threadIdx.x] = chunk[from];
  }
}

extern "C" const char* launch_permute(float* y, const float* x, const int* order, int64_t chunks,
                                      int64_t blocks, cudaStream_t stream) {
  permute<<<unsigned(blocks), kThreads, 0, stream>>>(y, x, order, chunks);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
