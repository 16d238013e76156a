// out[row] = the sum of x[row], row by row: a block of 256 threads per row. docs/11_reduction.md.
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The sum over the 32 threads of a warp. All of them get it.
__device__ float sum_over_warp(float x) {
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffff, x, distance);
  return x;
}

// The sum over the threads of a block. All of them must call it, and all of them get it.
__device__ float sum_over_block(float x, float* shared) {
  x = sum_over_warp(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += shared[warp];
  return total;
}

__global__ void row_sum(float* out, const float* x, int64_t width) {
  __shared__ float shared[kWarps];
  const float* row = x + blockIdx.x * width;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += row[i];
  sum = sum_over_block(sum, shared);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

extern "C" const char* launch_row_sum(float* out, const float* x, int64_t rows, int64_t width,
                                      cudaStream_t stream) {
  if (rows == 0) return nullptr;  // a grid of no blocks is an error
  if (rows > INT32_MAX) return "more rows than a grid can have blocks";
  row_sum<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(out, x, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
