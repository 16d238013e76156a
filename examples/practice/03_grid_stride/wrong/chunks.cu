// Right, but slow: each thread takes a chunk of neighbouring elements.
// check says: as many sectors
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void relu(float* y, const float* x, int64_t n) {
  const int64_t thread = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  const int64_t threads = int64_t(gridDim.x) * blockDim.x, chunk = (n + threads - 1) / threads;
  for (int64_t i = thread * chunk; i < min(n, (thread + 1) * chunk); ++i) y[i] = fmaxf(x[i], 0);
}

extern "C" const char* launch_relu(float* y, const float* x, int64_t n, int64_t blocks,
                                   cudaStream_t stream) {
  relu<<<unsigned(blocks), 256, 0, stream>>>(y, x, n);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
