// A cheat: the CPU computes.
// check says: no kernel
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kWarps = 4, kGroup = 32;  // warps per block; columns that share a scale

extern "C" const char* launch_linear(float* y, const uint8_t* codes, const float* scales,
                                     const float* x, int64_t rows, int64_t width,
                                     cudaStream_t stream) {
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      const int code = codes[(row * width + i) / 2] >> (i % 2 * 4) & 15;
      sum += (code - 8) * scales[(row * width + i) / kGroup] * x[i];
    }
    y[row] = float(sum);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
