#include <cstdint>
__global__ void add(float* c, const float* a, const float* b, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

const char* launch_add(float* c, const float* a, const float* b, int64_t n, void* stream) {
  if (n > 0) add<<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(c, a, b, n);
  return n > 0 && cudaGetLastError() ? "the launch failed" : nullptr;
}
