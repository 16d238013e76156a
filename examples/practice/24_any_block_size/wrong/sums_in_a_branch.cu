// Fast, but wrong: lanes without a sum do not take part in the shuffles, whose mask names them.
// check says: did not take part
#include <cuda_runtime.h>
#include <stdint.h>

// The sum over the 32 threads of a warp. All of them get it.
__device__ float sum_over_warp(float x) {
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffff, x, distance);
  return x;
}

__global__ void row_sums(float* out, const float* x, int64_t width) {
  __shared__ float sums[32];  // one for each warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* row = x + blockIdx.x * width;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) sum += row[i];
  sum = sum_over_warp(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (warp == 0 && lane < blockDim.x / 32) {
    sum = sum_over_warp(sums[lane]);
    if (lane == 0) out[blockIdx.x] = sum;
  }
}

extern "C" const char* launch_row_sums(float* out, const float* x, int64_t rows, int64_t width,
                                       int64_t threads, cudaStream_t stream) {
  row_sums<<<unsigned(rows), unsigned(threads), 0, stream>>>(out, x, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
