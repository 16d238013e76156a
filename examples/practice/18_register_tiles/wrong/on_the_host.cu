// A cheat: the CPU computes.
// check says: no kernel
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kTile = 64, kDepth = 16, kSums = 4;

extern "C" const char* launch_product(float* c, const float* a, const float* b, int64_t m,
                                      int64_t n, int64_t k, cudaStream_t stream) {
  for (int64_t i = 0; i < m * n; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += a[i / n * k + j] * b[i % n * k + j];
    c[i] = sum;
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
