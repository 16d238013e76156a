// Fast, but wrong: the sum has 64 bits, the product has not.
// check says: 2^32
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void flatten(int64_t* flat, const int* rows, const int* columns, int n, int width) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) flat[i] = rows[i] * width + int64_t(columns[i]);
}

extern "C" const char* launch_flatten(int64_t* flat, const int* rows, const int* columns, int64_t n,
                                      int64_t width, cudaStream_t stream) {
  flatten<<<unsigned((n + 255) / 256), 256, 0, stream>>>(flat, rows, columns, int(n), int(width));
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
