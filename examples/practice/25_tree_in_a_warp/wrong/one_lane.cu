// Right, but slow: one lane adds the row.
// check says: as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kWarps = 4;  // of a block; each takes a row

__global__ void row_sums(float* out, const float* x, int64_t rows, int64_t width) {
  __shared__ float places[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = blockIdx.x * int64_t(kWarps) + warp;
  if (row >= rows) return;  // the whole warp
  float sum = 0;
  if (lane > 0) return;
  for (int64_t i = 0; i < width; ++i) sum += x[row * width + i];
  float* mine = places[warp];
  mine[lane] = sum;
  if (lane == 0) out[row] = mine[0];
}

extern "C" const char* launch_row_sums(float* out, const float* x, int64_t rows, int64_t width,
                                       cudaStream_t stream) {
  row_sums<<<unsigned((rows + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(out, x, rows, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
