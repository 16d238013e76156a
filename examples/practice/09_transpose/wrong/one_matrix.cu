// Right for one size: a batch of one.
// check says: not been written
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void transpose(float* y, const float* x, int64_t height, int64_t width) {
  __shared__ float tile[32][33];
  const int64_t matrix = 0;  // the first element of the block's matrix
  const int64_t top = blockIdx.y * 32, left = int64_t(blockIdx.x) * 32;
  const int i = threadIdx.y, j = threadIdx.x;
  if (top + i < height && left + j < width) tile[i][j] = x[matrix + (top + i) * width + left + j];
  __syncthreads();
  if (left + i < width && top + j < height) y[matrix + (left + i) * height + top + j] = tile[j][i];
}

extern "C" const char* launch_transpose(float* y, const float* x, int64_t batch, int64_t height,
                                        int64_t width, cudaStream_t stream) {
  const dim3 blocks(unsigned((width + 31) / 32), unsigned((height + 31) / 32), unsigned(batch));
  transpose<<<blocks, dim3(32, 32), 0, stream>>>(y, x, height, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
