// The CUDA kernels of add2 and their launchers, without torch: this file compiles in about a
// second.
//
// Read it from top to bottom: the plain kernel that every tutorial starts with, then the one in
// use. Both are bound by memory: an addition per 12 bytes (float32) is nothing, so what counts is
// how many bytes are under way at once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "add2.h"

namespace {

// torch adds halves in float32 and rounds once, and so do we. Intrinsics, not operators: torch
// compiles .cu files with __CUDA_NO_HALF_OPERATORS__, CMake does not, and `a + b` on halves would
// build in one and fail in the other.
__device__ float add(float a, float b) { return a + b; }
__device__ double add(double a, double b) { return a + b; }
__device__ __half add(__half a, __half b) {
  return __float2half_rn(__half2float(a) + __half2float(b));
}
__device__ __nv_bfloat16 add(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

// 1. Plain: a grid-stride loop, one element at a time. Right for any n and any grid, and the loop
// reads like C. Each thread has two loads of 4 bytes in flight and waits for them before the next
// two: 2.3 of the 4.8 TB/s that the memory of an H200 can do.
template <typename T>
__global__ void add2_plain(T* c, const T* a, const T* b, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * blockDim.x) {
    c[i] = add(a[i], b[i]);
  }
}

// 2. In use: 16 bytes a thread, the widest load there is, so four times the bytes in flight for
// float32. No loop: every thread does one vector, and the hardware's block scheduler is the loop.
// __ldcs and __stcs mark the data as read or written once ("streaming"), so that it leaves the L2
// cache first. 4.4 TB/s on the same card, which is what torch.add reaches, and a little more.
template <typename T>
__global__ void add2_vector(T* c, const T* a, const T* b, int64_t n) {
  constexpr int kLanes = sizeof(int4) / sizeof(T);
  const int64_t i = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) * kLanes;
  if (i + kLanes <= n) {
    union Vector {
      int4 bytes;
      T lane[kLanes];
      __device__ Vector() {}
    } va, vb, vc;
    va.bytes = __ldcs(reinterpret_cast<const int4*>(a + i));
    vb.bytes = __ldcs(reinterpret_cast<const int4*>(b + i));
#pragma unroll
    for (int k = 0; k < kLanes; ++k) vc.lane[k] = add(va.lane[k], vb.lane[k]);
    __stcs(reinterpret_cast<int4*>(c + i), vc.bytes);
  } else {
    for (int64_t k = i; k < n; ++k)
      c[k] = add(a[k], b[k]);  // the last thread: what fills no vector
  }
}

// A view such as x[1:] does not start at a multiple of 16 bytes, and a 16-byte load from there is
// an error. Then each thread takes four single elements, a block's width apart, so that a warp
// still reads neighbours and each thread still has eight loads in flight.
template <typename T>
__global__ void add2_unaligned(T* c, const T* a, const T* b, int64_t n) {
  constexpr int kSteps = 4;
  const int64_t first = blockIdx.x * int64_t(blockDim.x) * kSteps + threadIdx.x;
  T va[kSteps], vb[kSteps];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int64_t i = first + k * int64_t(blockDim.x);
    if (i < n) va[k] = a[i], vb[k] = b[i];
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int64_t i = first + k * int64_t(blockDim.x);
    if (i < n) c[i] = add(va[k], vb[k]);
  }
}

// A grid has at most 2^31 - 1 blocks in x: with 256 threads of one element each that is 2^39
// elements, more than any GPU's memory holds, so the number of blocks needs no check.
unsigned blocks_for(int64_t items, int64_t items_per_block) {
  return static_cast<unsigned>((items + items_per_block - 1) / items_per_block);
}

const char* error_text(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <typename T>
struct Plain {
  static void launch(void* c, const void* a, const void* b, int64_t n, cudaStream_t stream) {
    constexpr int kThreads = 1024;
    add2_plain<T><<<blocks_for(n, kThreads), kThreads, 0, stream>>>(
        static_cast<T*>(c), static_cast<const T*>(a), static_cast<const T*>(b), n);
  }
};

template <typename T>
struct Fast {
  static void launch(void* c, const void* a, const void* b, int64_t n, cudaStream_t stream) {
    // Small: more blocks, so that every multiprocessor gets some. Large: fewer of them to schedule.
    // On an H200, 1024 threads instead of 256 cost 6 to 12% at 2^13 and 2^14 float32 elements and
    // gain 0.6% at 2^24.
    const int threads = n * int64_t(sizeof(T)) < (16 << 20) ? 256 : 1024;
    constexpr int kLanes = sizeof(int4) / sizeof(T);
    const auto addresses = reinterpret_cast<uintptr_t>(c) | reinterpret_cast<uintptr_t>(a) |
                           reinterpret_cast<uintptr_t>(b);
    const bool aligned = addresses % sizeof(int4) == 0;
    const auto kernel = aligned ? add2_vector<T> : add2_unaligned<T>;
    kernel<<<blocks_for(n, threads * (aligned ? kLanes : 4)), threads, 0, stream>>>(
        static_cast<T*>(c), static_cast<const T*>(a), static_cast<const T*>(b), n);
  }
};

// From a dtype known when the program runs to a type known when it is compiled.
template <template <typename> class Kernel>
const char* launch(void* c, const void* a, const void* b, int64_t n, Add2Dtype dtype,
                   cudaStream_t stream) {
  if (n <= 0) return nullptr;  // a grid of zero blocks would be an error
  switch (dtype) {
    case ADD2_FLOAT32:
      Kernel<float>::launch(c, a, b, n, stream);
      break;
    case ADD2_FLOAT64:
      Kernel<double>::launch(c, a, b, n, stream);
      break;
    case ADD2_FLOAT16:
      Kernel<__half>::launch(c, a, b, n, stream);
      break;
    case ADD2_BFLOAT16:
      Kernel<__nv_bfloat16>::launch(c, a, b, n, stream);
      break;
    default:
      return "unknown dtype";
  }
  return error_text(cudaGetLastError());  // a launch reports its failure here, and nowhere else
}

}  // namespace

extern "C" int add2_current_cuda_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

extern "C" const char* launch_add2_plain(void* c, const void* a, const void* b, int64_t n,
                                         Add2Dtype dtype, CUstream_st* stream) {
  return launch<Plain>(c, a, b, n, dtype, stream);
}

extern "C" const char* launch_add2_cuda(void* c, const void* a, const void* b, int64_t n,
                                        Add2Dtype dtype, CUstream_st* stream) {
  return launch<Fast>(c, a, b, n, dtype, stream);
}
