// Exercise 12: see task.md. To grade it: python3 practice.py check 12
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The sum over the 32 threads of a warp. All of them get it.
__device__ float sum_over_warp(float x) {
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffff, x, distance);
  return x;
}

// Here: the sum over the threads of a block. All of them must call it, and all of them get it.
__device__ float sum_over_block(float x) { return sum_over_warp(x); }

__global__ void statistics(float* mean, float* variance, const float* x, int64_t width) {
  const float* row = x + blockIdx.x * width;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += row[i];
  const float average = sum_over_block(sum) / width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads)
    squares += (row[i] - average) * (row[i] - average);
  squares = sum_over_block(squares);
  if (threadIdx.x == 0) {
    mean[blockIdx.x] = average;
    variance[blockIdx.x] = squares / width;
  }
}

extern "C" const char* launch_statistics(float* mean, float* variance, const float* x, int64_t rows,
                                         int64_t width, cudaStream_t stream) {
  statistics<<<unsigned(rows), kThreads, 0, stream>>>(mean, variance, x, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
