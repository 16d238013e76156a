// The CUDA kernels of add2, and nothing else: NVRTC compiles this file as it is, and add2_kernel.cu
// includes it. Read it from top to bottom, it is a lesson: from the kernel that every tutorial
// starts with to those in use. `python3 time.py --kernels` times the steps.
//
// Memory bounds all of them: one addition for 12 bytes (float32) is nothing, so the number of bytes
// under way at once decides. Figures in the comments come from an H200, whose memory does 4.8 TB/s,
// with inputs that are not in its L2 cache.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Index = long long;  // 64 bits; NVRTC has no <cstdint>

// torch adds halves in float32 and rounds once. __hadd rounds the exact sum once: the same bits,
// since 24 bits of float32 are enough for twice 11 (or 8) and two more (Figueroa, "When is double
// rounding innocuous?", 1995). __hadd2 adds two at once. Intrinsics, not operators: torch compiles
// .cu files with __CUDA_NO_HALF_OPERATORS__, CMake does not, and `a + b` on halves would build in
// one and fail in the other.
__device__ inline float add(float a, float b) { return a + b; }
__device__ inline double add(double a, double b) { return a + b; }
__device__ inline __half add(__half a, __half b) { return __hadd(a, b); }
__device__ inline __half2 add(__half2 a, __half2 b) { return __hadd2(a, b); }
__device__ inline __nv_bfloat16 add(__nv_bfloat16 a, __nv_bfloat16 b) { return __hadd(a, b); }
__device__ inline __nv_bfloat162 add(__nv_bfloat162 a, __nv_bfloat162 b) { return __hadd2(a, b); }

// 1. Plain: a grid-stride loop, one element at a time. Right for any n and any grid, and the loop
// reads like C. But each thread has only two loads of 4 bytes in flight, and nvcc unrolls the loop,
// which takes a 64-bit division before the first of them: 2.3 of 4.8 TB/s.
template <typename T>
__global__ void add2_plain(T* c, const T* a, const T* b, Index n) {
  for (Index i = blockIdx.x * Index(blockDim.x) + threadIdx.x; i < n;
       i += Index(gridDim.x) * blockDim.x) {
    c[i] = add(a[i], b[i]);
  }
}

// 16 bytes of elements, which is the widest load there is; halves in pairs.
template <typename T>
struct Lane {
  using type = T;
};
template <>
struct Lane<__half> {
  using type = __half2;
};
template <>
struct Lane<__nv_bfloat16> {
  using type = __nv_bfloat162;
};
template <typename T>
union Vector {
  int4 bytes;
  typename Lane<T>::type lane[sizeof(int4) / sizeof(typename Lane<T>::type)];
  __device__ Vector() {}
};

// 2. Vector: 16 bytes a thread, so four times the bytes in flight for float32, and all of torch's
// speed: 4.3 TB/s at 2^26 elements. No loop: every thread does one vector, and the hardware's block
// scheduler is the loop. In use from 16 MB a tensor on, with 1024 threads a block.
//
// 3. Small: the same with 256 threads a block. 2^13 elements of float32 are two blocks of 1024
// threads, on two of 132 multiprocessors; eight of 256 take 8% less time. In use below 4 MB.
//
// 4. Medium, from 4 to 16 MB: two vectors a thread, as all of the GPU's threads together then hold
// the whole tensor at once, and no block waits for another to end: up to 2.5% less time on an H100
// (8 MB), half a percent here. At no other size are two vectors a thread faster on both.
//
// Tried, and slower for large tensors: a grid that fits the GPU, and a loop in it (5%); the same by
// bulk copies to shared memory, the TMA of sm_90 (4 to 5%). Not worth a step: stores marked as the
// first to leave the L2 cache (__stcs), which win 0.2% where the inputs are not in it.
//
// Not __ldcs, the same for loads! It looks even better in a benchmark of its own, 10% at 2^17
// elements. But where another kernel's data fill the cache they stay, ours get the little that is
// left, and the kernel is 5 to 10% slower: after a matrix product, for example.
template <typename T, int kVectors>
__global__ void add2_vector(T* c, const T* a, const T* b, Index n) {
  constexpr int kElements = sizeof(int4) / sizeof(T);
  const Index first = (blockIdx.x * Index(blockDim.x) * kVectors + threadIdx.x) * kElements;
  const Index step = Index(blockDim.x) * kElements;
  if (first + (kVectors - 1) * step + kElements <= n) {
    Vector<T> x[kVectors], y[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      x[v].bytes = *reinterpret_cast<const int4*>(a + first + v * step);
      y[v].bytes = *reinterpret_cast<const int4*>(b + first + v * step);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int k = 0; k < sizeof(x[v].lane) / sizeof(x[v].lane[0]); ++k) {
        x[v].lane[k] = add(x[v].lane[k], y[v].lane[k]);
      }
      *reinterpret_cast<int4*>(c + first + v * step) = x[v].bytes;
    }
  } else {  // the last threads: elements that fill no vectors
    for (Index i = first; i < n; i += step) {
      for (Index k = i; k < i + kElements && k < n; ++k) c[k] = add(a[k], b[k]);
    }
  }
}

// Unaligned: a view such as x[1:] does not start at a multiple of 16 bytes, and a 16-byte load from
// there is an error. Then each thread takes single elements, a block's width apart, so that a warp
// still reads neighbours and each thread still has several loads in flight.
template <typename T, int kSteps>
__global__ void add2_unaligned(T* c, const T* a, const T* b, Index n) {
  const Index first = blockIdx.x * Index(blockDim.x) * kSteps + threadIdx.x;
  T x[kSteps], y[kSteps];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const Index i = first + k * Index(blockDim.x);
    if (i < n) x[k] = a[i], y[k] = b[i];
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const Index i = first + k * Index(blockDim.x);
    if (i < n) c[i] = add(x[k], y[k]);
  }
}
