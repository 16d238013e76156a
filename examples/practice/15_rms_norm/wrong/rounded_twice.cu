// Fast, but wrong: the normal is rounded to bfloat16 before it is multiplied by the weight.
// check says: y[
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr float kEpsilon = 1e-6f;

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

__global__ void rms_norm(__nv_bfloat16* y, float* rstd, const __nv_bfloat16* x,
                         const __nv_bfloat16* weight, int64_t width) {
  const int64_t start = blockIdx.x * width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float element = __bfloat162float(x[start + i]);
    squares += element * element;
  }
  const float scale = rsqrtf(sum_over_block(squares) / width + kEpsilon);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float element = __bfloat162float(x[start + i]);
    y[start + i] = __float2bfloat16(__bfloat162float(__float2bfloat16(element * scale)) *
                                    __bfloat162float(weight[i]));
  }
}

extern "C" const char* launch_rms_norm(__nv_bfloat16* y, float* rstd, const __nv_bfloat16* x,
                                       const __nv_bfloat16* weight, int64_t rows, int64_t width,
                                       cudaStream_t stream) {
  rms_norm<<<unsigned(rows), kThreads, 0, stream>>>(y, rstd, x, weight, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
