// Exercise 17: see task.md. To grade it: python3 practice.py check 17
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kTile = 32;

__global__ void product(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k) {
  const int64_t row = blockIdx.y * int64_t(kTile) + threadIdx.y;
  const int64_t column = blockIdx.x * int64_t(kTile) + threadIdx.x;
  if (row >= m || column >= n) return;
  // Here: through tiles in shared memory.
  float sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += a[row * k + i] * b[column * k + i];
  c[row * n + column] = sum;
}

extern "C" const char* launch_product(float* c, const float* a, const float* b, int64_t m,
                                      int64_t n, int64_t k, cudaStream_t stream) {
  const dim3 blocks(unsigned((n + kTile - 1) / kTile), unsigned((m + kTile - 1) / kTile));
  product<<<blocks, dim3(kTile, kTile), 0, stream>>>(c, a, b, m, n, k);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
