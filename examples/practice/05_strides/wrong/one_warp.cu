// Right, but slow: one warp copies everything.
// check says: one warp needs
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void compact(float* y, const float* x, int64_t height, int64_t width, int64_t row_stride,
                        int64_t column_stride) {
  const int64_t column = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  const int64_t row = blockIdx.y * int64_t(blockDim.y) + threadIdx.y;
  for (int64_t r = row; r < height; ++r)
    for (int64_t c = column; c < width; c += 32)
      y[r * width + c] = x[r * row_stride + c * column_stride];
}

extern "C" const char* launch_compact(float* y, const float* x, int64_t height, int64_t width,
                                      int64_t row_stride, int64_t column_stride,
                                      cudaStream_t stream) {
  const dim3 threads(32, 1), blocks(1, 1);
  compact<<<blocks, threads, 0, stream>>>(y, x, height, width, row_stride, column_stride);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
