// Fast, but wrong: the strides are confused.
// check says: out of bounds
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void compact(float* y, const float* x, int64_t height, int64_t width, int64_t row_stride,
                        int64_t column_stride) {
  const int64_t column = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  const int64_t row = blockIdx.y * int64_t(blockDim.y) + threadIdx.y;
  if (row < height && column < width)
    y[row * width + column] = x[row * column_stride + column * row_stride];
}

extern "C" const char* launch_compact(float* y, const float* x, int64_t height, int64_t width,
                                      int64_t row_stride, int64_t column_stride,
                                      cudaStream_t stream) {
  const dim3 threads(32, 8), blocks(unsigned((width + 31) / 32), unsigned((height + 7) / 8));
  compact<<<blocks, threads, 0, stream>>>(y, x, height, width, row_stride, column_stride);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
