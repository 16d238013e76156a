#include "rope.h"
template <int N>
__global__ void rotate(float* y, const float* x, View v, const float* cos, const float* sin) {
  const int64_t i = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) * N;
  if (i < v.pairs) rotate_pairs<N>(i / v.half, i % v.half, y, x, v, cos, sin);
}

const char* launch_rotate(float* y, const float* x, View v, const float* cos, const float* sin,
                          void* stream) {
  const auto addresses = uintptr_t(x) | uintptr_t(cos) | uintptr_t(sin);
  const auto steps = v.half | v.strides[0] | v.strides[1] | v.strides[2];
  const bool is_wide = addresses % 16 == 0 && steps % 4 == 0 && v.strides[3] == 1;
  const int64_t threads = is_wide ? v.pairs / 4 : v.pairs;
  if (threads == 0) return nullptr;
  const auto kernel = is_wide ? rotate<4> : rotate<1>;
  kernel<<<(threads + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(y, x, v, cos, sin);
  return cudaGetLastError() ? "rotate: the launch failed" : nullptr;
}
