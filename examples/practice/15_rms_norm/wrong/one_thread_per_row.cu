// Right, but slow: one thread computes a row.
// check says: as many sectors
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr float kEpsilon = 1e-6f;

__global__ void rms_norm(__nv_bfloat16* y, float* rstd, const __nv_bfloat16* x,
                         const __nv_bfloat16* weight, int64_t width) {
  const int64_t start = blockIdx.x * width;
  if (threadIdx.x > 0) return;
  float squares = 0;
  for (int64_t i = 0; i < width; ++i) {
    const float element = __bfloat162float(x[start + i]);
    squares += element * element;
  }
  const float scale = rsqrtf(squares / width + kEpsilon);
  rstd[blockIdx.x] = scale;
  for (int64_t i = 0; i < width; ++i) {
    const float element = __bfloat162float(x[start + i]);
    y[start + i] = __float2bfloat16(element * scale * __bfloat162float(weight[i]));
  }
}

extern "C" const char* launch_rms_norm(__nv_bfloat16* y, float* rstd, const __nv_bfloat16* x,
                                       const __nv_bfloat16* weight, int64_t rows, int64_t width,
                                       cudaStream_t stream) {
  rms_norm<<<unsigned(rows), kThreads, 0, stream>>>(y, rstd, x, weight, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
