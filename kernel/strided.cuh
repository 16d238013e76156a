// The kernel for inputs with strides, and its launcher; add2_kernel.cu includes it.
#pragma once
#include <cuda_runtime.h>

#include "add2_kernel.cuh"
#include "strided.h"

// GPUs have no instruction for integer division, so the host computes `inverse`, 2^64 / size
// rounded up. The upper part of its product with a 32-bit number is the quotient, exactly (Lemire,
// Kaser and Kurz, "Faster remainder by direct computation", 2019).
struct Dimension {
  unsigned size;
  unsigned long long inverse;
  Index a_step, b_step;
};
struct KernelWalk {
  int count;
  Dimension dims[Add2Walk::kMaxDims];
};

// (x * inverse) >> 64, in two multiplications; __umul64hi takes four.
__device__ inline unsigned divide(unsigned x, unsigned long long inverse) {
  const unsigned low = static_cast<unsigned>(inverse), high = static_cast<unsigned>(inverse >> 32);
  return (static_cast<unsigned long long>(high) * x + __umulhi(low, x)) >> 32;
}

// 4. Strided: like add2_unaligned, but each element's offset is computed from its coordinates.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add2_strided(T* c, const T* a, const T* b, unsigned n, const KernelWalk walk) {
  const unsigned first = blockIdx.x * (kThreads * kSteps) + threadIdx.x;
  unsigned rest[kSteps];  // of the element's index, after the inner coordinates
  Index in_a[kSteps] = {}, in_b[kSteps] = {};
#pragma unroll
  for (int k = 0; k < kSteps; ++k) rest[k] = first + k * kThreads;
  int d = 0;
#pragma unroll 1
  for (; d < walk.count - 1; ++d) {
    const Dimension dim = walk.dims[d];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const unsigned outer = divide(rest[k], dim.inverse);
      const unsigned coordinate = rest[k] - outer * dim.size;
      in_a[k] += coordinate * dim.a_step;
      in_b[k] += coordinate * dim.b_step;
      rest[k] = outer;
    }
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    in_a[k] += rest[k] * walk.dims[d].a_step;
    in_b[k] += rest[k] * walk.dims[d].b_step;
  }
  T x[kSteps], y[kSteps];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    if (first + k * kThreads < n) {
      x[k] = a[in_a[k]];
      y[k] = b[in_b[k]];
    }
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    if (first + k * kThreads < n) c[first + k * kThreads] = add(x[k], y[k]);
  }
}

template <typename T>
const char* launch_strided(void* c, const void* a, const void* b, Add2Walk walk,
                           cudaStream_t stream) {
  auto* out = static_cast<T*>(c);
  auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  const int64_t n = walk.numel();
  if (n > 1ll << 31) {  // too many for 32 bits: one half of the outermost dimension, then the other
    while (walk.sizes[walk.count - 1] == 1) --walk.count;  // left by an earlier half
    const int outermost = walk.count - 1;
    const int64_t size = walk.sizes[outermost], half = size / 2;
    walk.sizes[outermost] = half;
    if (const char* error = launch_strided<T>(out, x, y, walk, stream)) return error;
    walk.sizes[outermost] = size - half;
    return launch_strided<T>(out + n / size * half, x + half * walk.a_steps[outermost],
                             y + half * walk.b_steps[outermost], walk, stream);
  }
  KernelWalk for_kernel = {walk.count, {}};
  for (int d = 0; d < walk.count; ++d) {
    const auto size = static_cast<unsigned>(walk.sizes[d]);
    for_kernel.dims[d] = {size, ~0ull / size + 1, walk.a_steps[d], walk.b_steps[d]};
  }
  const auto blocks = static_cast<unsigned>((n + kThreads * kSteps - 1) / (kThreads * kSteps));
  add2_strided<<<blocks, kThreads, 0, stream>>>(out, x, y, static_cast<unsigned>(n), for_kernel);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
