// Right, but slow: loads each byte once for either code. (As it is volatile, the compiler does not
// join the loads.)
// check says: as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kWarps = 4, kGroup = 32;  // warps per block; columns that share a scale

// The sum over the 32 threads of a warp. All of them get it.
__device__ float sum_over_warp(float x) {
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffff, x, distance);
  return x;
}

__global__ void linear(float* y, const uint8_t* codes, const float* scales, const float* x,
                       int64_t rows, int64_t width) {
  const int lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
  if (row >= rows) return;  // the whole warp
  float sum = 0;
  for (int64_t i = lane; i < width / 2; i += 32) {
    const volatile uint8_t* pair = codes + row * (width / 2) + i;
    const float scale = scales[row * (width / kGroup) + 2 * i / kGroup];
    const float2 two = *reinterpret_cast<const float2*>(x + 2 * i);
    sum += scale * (((*pair & 15) - 8) * two.x + ((*pair >> 4) - 8) * two.y);
  }
  sum = sum_over_warp(sum);
  if (lane == 0) y[row] = sum;
}

extern "C" const char* launch_linear(float* y, const uint8_t* codes, const float* scales,
                                     const float* x, int64_t rows, int64_t width,
                                     cudaStream_t stream) {
  linear<<<unsigned((rows + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(y, codes, scales, x,
                                                                             rows, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
