// Right, but slow: one block takes all vectors in a loop.
// check says: one warp needs
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void scale_vectors(float* y, const float* x, int64_t n) {
  for (int64_t first = 4 * threadIdx.x; first < n; first += 1024)
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
    scale_vectors<<<1, 256, 0, stream>>>(y, x, n);
  else
    scale<<<unsigned((n + 255) / 256), 256, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
