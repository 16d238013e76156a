// Exercise 9: see task.md. To grade it: python3 practice.py check 9
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void transpose(float* y, const float* x, int64_t height, int64_t width) {
  const int64_t matrix = blockIdx.z * height * width;  // the first element of the block's matrix
  const int64_t top = blockIdx.y * 32, left = int64_t(blockIdx.x) * 32;
  const int i = threadIdx.y, j = threadIdx.x;
  // Here: through a tile in shared memory.
  if (top + i < height && left + j < width)
    y[matrix + (left + j) * height + top + i] = x[matrix + (top + i) * width + left + j];
}

extern "C" const char* launch_transpose(float* y, const float* x, int64_t batch, int64_t height,
                                        int64_t width, cudaStream_t stream) {
  const dim3 blocks(unsigned((width + 31) / 32), unsigned((height + 31) / 32), unsigned(batch));
  transpose<<<blocks, dim3(32, 32), 0, stream>>>(y, x, height, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
