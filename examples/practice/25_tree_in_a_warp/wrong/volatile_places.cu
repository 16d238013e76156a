// Fast, but wrong: the idiom for GPUs whose lanes ran in step. A volatile write is not kept in a
// register, but no lane waits for it.
// check says: race
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kWarps = 4;  // of a block; each takes a row

__global__ void row_sums(float* out, const float* x, int64_t rows, int64_t width) {
  __shared__ float places[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = blockIdx.x * int64_t(kWarps) + warp;
  if (row >= rows) return;  // the whole warp
  float sum = 0;
  for (int64_t i = lane; i < width; i += 32) sum += x[row * width + i];
  volatile float* mine = places[warp];
  mine[lane] = sum;
  for (int distance = 16; distance > 0; distance /= 2) {
    if (lane < distance) mine[lane] += mine[lane + distance];
  }
  if (lane == 0) out[row] = mine[0];
}

extern "C" const char* launch_row_sums(float* out, const float* x, int64_t rows, int64_t width,
                                       cudaStream_t stream) {
  row_sums<<<unsigned((rows + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(out, x, rows, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
