// A cheat: a library's reduction again, which comes with CUDA's headers.
// check says: cooperative_groups/reduce.h
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kWarps = 4;  // of a block; each takes a row

// The sum over the 32 threads of a warp. All of them get it.
__device__ float sum_over_warp(float x) {
  namespace cg = cooperative_groups;
  return cg::reduce(cg::tiled_partition<32>(cg::this_thread_block()), x, cg::plus<float>());
}

__global__ void row_sums(float* out, const float* x, int64_t rows, int64_t width) {
  const int lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
  if (row >= rows) return;  // the whole warp
  float sum = 0;
  for (int64_t i = lane; i < width; i += 32) sum += x[row * width + i];
  sum = sum_over_warp(sum);
  if (lane == 0) out[row] = sum;
}

extern "C" const char* launch_row_sums(float* out, const float* x, int64_t rows, int64_t width,
                                       cudaStream_t stream) {
  row_sums<<<unsigned((rows + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(out, x, rows, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
