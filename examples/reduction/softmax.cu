// y[row] = softmax(x[row]): the maximum and the sum in one pass. docs/11_reduction.md.
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int kThreads = 256, kWarps = kThreads / 32;

// What is known about some elements of a row: their maximum, and the sum of exp(x - maximum).
struct Part {
  float maximum = -INFINITY, sum = 0;
};

// fmaxf passes over a NaN, but the sum carries it, and makes the whole row NaN.
__device__ Part combine(Part a, Part b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  const float shift = maximum == -INFINITY ? 0 : maximum;  // -inf - -inf would be NaN
  Part both;
  both.maximum = maximum;
  both.sum = a.sum * expf(a.maximum - shift) + b.sum * expf(b.maximum - shift);
  return both;
}

__device__ Part element(float x) {
  Part one;
  one.maximum = x;
  one.sum = x == -INFINITY ? 0 : 1;
  return one;
}

__device__ Part over_warp(Part part) {
  for (int distance = 16; distance > 0; distance /= 2) {
    Part other;
    other.maximum = __shfl_xor_sync(0xffffffff, part.maximum, distance);
    other.sum = __shfl_xor_sync(0xffffffff, part.sum, distance);
    part = combine(part, other);
  }
  return part;
}

__global__ void softmax(float* y, const float* x, int64_t width) {
  __shared__ float maxima[kWarps], sums[kWarps];
  const int64_t start = blockIdx.x * width;
  Part part;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    part = combine(part, element(x[start + i]));
  }
  part = over_warp(part);
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = part.maximum;
    sums[threadIdx.x / 32] = part.sum;
  }
  __syncthreads();
  Part row;
  for (int warp = 0; warp < kWarps; ++warp) {
    Part other;
    other.maximum = maxima[warp];
    other.sum = sums[warp];
    row = combine(row, other);
  }
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    y[start + i] = expf(x[start + i] - row.maximum) / row.sum;
  }
}

extern "C" const char* launch_softmax(float* y, const float* x, int64_t rows, int64_t width,
                                      cudaStream_t stream) {
  if (rows == 0) return nullptr;  // a grid of no blocks is an error
  if (rows > INT32_MAX) return "more rows than a grid can have blocks";
  softmax<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(y, x, width);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
