// Fast, but wrong: block 0 may set to 0 what others have added to the first row of partial. They
// also add in any order, so the last digits differ.
// check says: race
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32, kElements = 4;

// The sum over the threads of a block. All of them must call it, and all of them get it.
__device__ float sum_over_block(float x) {
  __shared__ float sums[kWarps];
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffff, x, distance);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += sums[warp];
  __syncthreads();
  return total;
}

__global__ void gradient(float* dx, float* partial, const float* dy, const float* x,
                         const float* weight, const float* rstd, int64_t rows, int width) {
  float of_weight[kElements] = {};
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float scale = rstd[row];
    float normal[kElements], scaled[kElements], products = 0;  // x * rstd, dy * weight
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const int i = threadIdx.x + k * kThreads;
      normal[k] = scaled[k] = 0;
      if (i >= width) continue;
      const float slope = dy[row * width + i];
      normal[k] = x[row * width + i] * scale;
      scaled[k] = slope * weight[i];
      products += scaled[k] * normal[k];
      of_weight[k] += slope * normal[k];
    }
    const float mean = sum_over_block(products) / width;
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const int i = threadIdx.x + k * kThreads;
      if (i < width) dx[row * width + i] = scale * (scaled[k] - normal[k] * mean);
    }
  }
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (i < width) {
      partial[blockIdx.x * int64_t(width) + i] = 0;
      atomicAdd(&partial[i], of_weight[k]);
    }
  }
}

// dweight[i] = the sum of partial[0][i], partial[1][i], ...
__global__ void add_partial(float* dweight, const float* partial, int64_t blocks, int64_t width) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= width) return;
  float sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += partial[block * width + i];
  dweight[i] = sum;
}

extern "C" const char* launch_gradient(float* dx, float* dweight, float* partial, const float* dy,
                                       const float* x, const float* weight, const float* rstd,
                                       int64_t rows, int64_t width, int64_t blocks,
                                       cudaStream_t stream) {
  if (width > kThreads * kElements) return "a row has at most 1024 elements";
  gradient<<<unsigned(blocks), kThreads, 0, stream>>>(dx, partial, dy, x, weight, rstd, rows,
                                                      int(width));
  add_partial<<<unsigned((width + 255) / 256), 256, 0, stream>>>(dweight, partial, blocks, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
