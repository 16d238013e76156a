// Right, but slow: only if all sizes are multiples of 32 are there tiles.
// check says: as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kTile = 32;

__global__ void product(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k) {
  if (m % kTile != 0 || n % kTile != 0 || k % kTile != 0) {
    const int64_t row = blockIdx.y * int64_t(kTile) + threadIdx.y;
    const int64_t column = blockIdx.x * int64_t(kTile) + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int64_t step = 0; step < k; ++step) sum += a[row * k + step] * b[column * k + step];
    c[row * n + column] = sum;
    return;
  }
  __shared__ float a_tile[kTile][kTile + 1], b_tile[kTile][kTile + 1];
  const int i = threadIdx.y, j = threadIdx.x;
  const int64_t top = blockIdx.y * int64_t(kTile), left = blockIdx.x * int64_t(kTile);
  float sum = 0;
  for (int64_t start = 0; start < k; start += kTile) {
    const bool is_inside = start + j < k;
    a_tile[i][j] = is_inside && top + i < m ? a[(top + i) * k + start + j] : 0;
    b_tile[i][j] = is_inside && left + i < n ? b[(left + i) * k + start + j] : 0;
    __syncthreads();
    for (int step = 0; step < kTile; ++step) sum += a_tile[i][step] * b_tile[j][step];
    __syncthreads();
  }
  if (top + i < m && left + j < n) c[(top + i) * n + left + j] = sum;
}

extern "C" const char* launch_product(float* c, const float* a, const float* b, int64_t m,
                                      int64_t n, int64_t k, cudaStream_t stream) {
  const dim3 blocks(unsigned((n + kTile - 1) / kTile), unsigned((m + kTile - 1) / kTile));
  product<<<blocks, dim3(kTile, kTile), 0, stream>>>(c, a, b, m, n, k);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
