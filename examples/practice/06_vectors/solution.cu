// Four elements per thread, by one load of 16 bytes. The last thread may have fewer.
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void scale_vectors(float* y, const float* x, int64_t n) {
  const int64_t first = 4 * (blockIdx.x * int64_t(blockDim.x) + threadIdx.x);
  if (first + 4 <= n) {
    float4 v = *reinterpret_cast<const float4*>(x + first);
    v.x *= 0.5f;
    v.y *= 0.5f;
    v.z *= 0.5f;
    v.w *= 0.5f;
    *reinterpret_cast<float4*>(y + first) = v;
  } else {
    for (int64_t i = first; i < n; ++i) y[i] = 0.5f * x[i];
  }
}

__global__ void scale(float* y, const float* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = 0.5f * x[i];
}

extern "C" const char* launch_scale(float* y, const float* x, int64_t n, cudaStream_t stream) {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y);
  if (addresses % 16 == 0)
    scale_vectors<<<unsigned((n + 1023) / 1024), 256, 0, stream>>>(y, x, n);
  else
    scale<<<unsigned((n + 255) / 256), 256, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
