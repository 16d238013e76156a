// Right for one size: up to 1,024 entries: four blocks are started for any number.
// check says: have not been written
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void flatten(int64_t* flat, const int* rows, const int* columns, int n, int width) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) flat[i] = int64_t(rows[i]) * width + columns[i];
}

extern "C" const char* launch_flatten(int64_t* flat, const int* rows, const int* columns, int64_t n,
                                      int64_t width, cudaStream_t stream) {
  flatten<<<4, 256, 0, stream>>>(flat, rows, columns, int(n), int(width));
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
