// A cheat: the CPU computes.
// check says: no kernel
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int kWidth = 64, kWarps = 8;  // of a query, a key, a value; warps per block

extern "C" const char* launch_attend(float* out, const float* q, const float* keys,
                                     const float* values, int64_t heads, int64_t tokens,
                                     cudaStream_t stream) {
  for (int64_t head = 0; head < heads; ++head) {
    double total = 0, sums[kWidth] = {}, maximum = -INFINITY;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t token = head * tokens; token < (head + 1) * tokens; ++token) {
        double score = 0;
        for (int i = 0; i < kWidth; ++i)
          score += q[head * kWidth + i] * keys[token * kWidth + i] / 8;
        if (pass == 0) maximum = fmax(maximum, score);
        if (pass == 0) continue;
        total += exp(score - maximum);
        for (int i = 0; i < kWidth; ++i)
          sums[i] += exp(score - maximum) * values[token * kWidth + i];
      }
    }
    for (int i = 0; i < kWidth; ++i) out[head * kWidth + i] = float(sums[i] / total);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
