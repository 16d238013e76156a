// A thread keeps its elements, four at most, in registers. All loops over them are unrolled: an
// array in registers has no address, so its indices must be known to the compiler.
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32, kElements = 4;

// a + b or the maximum, over the threads of a block. All of them must call it, and all of them get
// it. The sum and the maximum each have an array `parts` of their own.
template <bool kIsMaximum>
__device__ float over_block(float x) {
  __shared__ float parts[kWarps];
  const auto combine = [](float a, float b) { return kIsMaximum ? fmaxf(a, b) : a + b; };
  for (int distance = 16; distance > 0; distance /= 2)
    x = combine(x, __shfl_xor_sync(0xffffffff, x, distance));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[0];
  for (int warp = 1; warp < kWarps; ++warp) x = combine(x, parts[warp]);
  return x;
}

__global__ void softmax(float* y, const float* x, int width) {
  const int64_t start = blockIdx.x * int64_t(width);
  float mine[kElements], maximum = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int i = threadIdx.x + k * kThreads;
    mine[k] = i < width ? x[start + i] : -INFINITY;
    maximum = fmaxf(maximum, mine[k]);
  }
  maximum = over_block<true>(maximum);
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int i = threadIdx.x + k * kThreads;
    mine[k] = i < width ? expf(mine[k] - maximum) : 0;
    sum += mine[k];
  }
  sum = over_block<false>(sum);
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (i < width) y[start + i] = mine[k] / sum;
  }
}

extern "C" const char* launch_softmax(float* y, const float* x, int64_t rows, int64_t width,
                                      cudaStream_t stream) {
  if (width > 1024) return "a row has at most 1024 elements";
  softmax<<<unsigned(rows), kThreads, 0, stream>>>(y, x, int(width));
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
