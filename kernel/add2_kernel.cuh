// The CUDA kernels of add2, and nothing else: add2_kernel.cu includes this file, and NVRTC compiles
// it as it is (examples/ways). Read it from top to bottom: the kernel that every tutorial starts
// with, then the two in use. `python3 time.py --kernels` times each.
//
// Memory bounds all of them: one addition for 12 bytes (float32) is nothing, so the number of bytes
// in flight at once decides. Figures in the comments come from an H200, whose memory does 4.8 TB/s,
// with inputs that are not in its L2 cache.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Index = long long;  // 64 bits; NVRTC has no <cstdint>

// The geometry of a launch. add2_kernel.cu uses these numbers.
constexpr int kThreads = 256;          // per block
constexpr int kLargeThreads = 1024;    // per block of add2_vector, if a tensor has
constexpr int kLargeBytes = 16777216;  // 16 MB or more
constexpr int kSteps = 4;              // elements per thread of add2_unaligned

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

// 1. Plain: a grid-stride loop, one element at a time. It is right for any n and any grid, and the
// loop reads like C. But each thread has only two loads of 4 bytes in flight, and nvcc unrolls the
// loop, which takes a division before the first of them: 2.3 of 4.8 TB/s at 2^26 elements.
template <typename T>
__global__ void add2_plain(T* c, const T* a, const T* b, Index n) {
  for (Index i = blockIdx.x * Index(blockDim.x) + threadIdx.x; i < n;
       i += Index(gridDim.x) * blockDim.x) {
    c[i] = add(a[i], b[i]);
  }
}

// 16 bytes of elements, halves in pairs. 16 bytes is the widest load of every GPU before sm_100.
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

// 2. Vector: 16 bytes per thread, so four times the bytes in flight for float32: 4.4 TB/s at 2^26
// elements. No loop: each thread adds one vector, and the hardware's block scheduler is the loop.
// All three pointers have to be multiples of 16.
//
// Elements after the last whole vector have a block of their own, the last one. Otherwise one warp
// would load vectors, wait, load single elements, and wait again.
//
// 256 threads per block: 2^13 elements of float32 are two blocks of 1024 threads, on two of 132
// multiprocessors; eight blocks of 256 are faster. From 16 MB on 1024 threads are slightly faster.
//
// Tried and dropped: four vectors per thread (no faster); a grid that fits the GPU, and a loop in
// it (4 to 5% slower than torch); the same by bulk copies to shared memory, the TMA of sm_90 (3 to
// 5% slower than torch); stores marked as the first to leave the L2 cache (__stcs: 1% faster).
//
// Not __ldcs, the same for loads! In a benchmark that runs nothing else it is up to 10% faster. But
// data loaded so is evicted first, and keeps only the cache space that other data leaves free:
// after a matrix product, for example, the kernel is 5 to 10% slower.
template <typename T>
__global__ void add2_vector(T* c, const T* a, const T* b, Index n) {
  constexpr int kElements = sizeof(int4) / sizeof(T);
  const Index first = (blockIdx.x * Index(blockDim.x) + threadIdx.x) * kElements;
  if (first + kElements <= n) {
    Vector<T> x, y;
    x.bytes = *reinterpret_cast<const int4*>(a + first);
    y.bytes = *reinterpret_cast<const int4*>(b + first);
#pragma unroll
    for (int k = 0; k < sizeof(x.lane) / sizeof(x.lane[0]); ++k) {
      x.lane[k] = add(x.lane[k], y.lane[k]);
    }
    *reinterpret_cast<int4*>(c + first) = x.bytes;
  } else if (blockIdx.x == gridDim.x - 1) {
    const Index i = n - n % kElements + threadIdx.x;
    if (i < n) c[i] = add(a[i], b[i]);
  }
}

// 3. Unaligned: a view such as x[1:] does not start at a multiple of 16 bytes, and a 16-byte load
// from there is an error. Each thread takes single elements, a block's width apart, so that a warp
// reads neighbours and each thread still has eight loads in flight. Everything but the block's
// first element fits 32 bits, and the width is a constant, so addresses cost few instructions.
template <typename T>
__global__ void __launch_bounds__(kThreads) add2_unaligned(T* c, const T* a, const T* b, Index n) {
  constexpr int kElements = kThreads * kSteps;
  const Index first = blockIdx.x * Index(kElements);
  const int left = n - first < kElements ? static_cast<int>(n - first) : kElements;
  T x[kSteps], y[kSteps];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (i < left) {
      x[k] = a[first + i];
      y[k] = b[first + i];
    }
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (i < left) c[first + i] = add(x[k], y[k]);
  }
}
