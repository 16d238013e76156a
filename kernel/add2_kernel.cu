// The CUDA kernels of add2 and their launchers, without torch: this file compiles in about a
// second. Read it from top to bottom, it is a lesson: from the kernel that every tutorial starts
// with to the one in use. `python3 time.py --kernels` times the steps.
//
// All of them are bound by memory: one addition for 12 bytes (float32) is nothing, so what counts
// is how many bytes are under way at once. Figures in the comments are of an H200, whose memory
// does 4.8 TB/s, with inputs that are not in its L2 cache.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "add2.h"

namespace {

// torch adds halves in float32 and rounds once. __hadd rounds the exact sum once: the same bits,
// since 24 bits of float32 are enough for twice 11 (or 8) and two more (Figueroa, "When is double
// rounding innocuous?", 1995). __hadd2 adds two at once. Intrinsics, not operators: torch compiles
// .cu files with __CUDA_NO_HALF_OPERATORS__, CMake does not, and `a + b` on halves would build in
// one and fail in the other.
__device__ float add(float a, float b) { return a + b; }
__device__ double add(double a, double b) { return a + b; }
__device__ __half add(__half a, __half b) { return __hadd(a, b); }
__device__ __half2 add(__half2 a, __half2 b) { return __hadd2(a, b); }
__device__ __nv_bfloat16 add(__nv_bfloat16 a, __nv_bfloat16 b) { return __hadd(a, b); }
__device__ __nv_bfloat162 add(__nv_bfloat162 a, __nv_bfloat162 b) { return __hadd2(a, b); }

// 1. Plain: a grid-stride loop, one element at a time. Right for any n and any grid, and the loop
// reads like C. But each thread has two loads of 4 bytes in flight and waits for them before the
// next two: 2.3 of 4.8 TB/s.
template <typename T>
__global__ void add2_plain(T* c, const T* a, const T* b, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * blockDim.x) {
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
// scheduler is the loop.
//
// 3. Small: the same with 256 threads a block instead of 1024. 2^13 elements of float32 are two
// blocks of 1024 threads, on two of 132 multiprocessors; eight of 256 take 8% less time.
//
// 4. Medium, from 4 MB on: two vectors a thread, as all of the GPU's threads together then hold the
// whole tensor at once, and no block waits for another to end: up to 2% less time on an H100 (8
// MB), half a percent here. At no other size are two vectors a thread faster on both.
//
// 5. Large, from 16 MB a tensor on: blocks of 1024 again, 0.5% faster, as there are fewer to
// schedule. And __stcs marks what is written as the first to leave the L2 cache ("streaming"), as
// in medium. The result does not stay there anyhow; but a and b may, for whoever reads them next:
// up to 16% less time for 2^22 elements that are added again and again.
//
// Tried, and slower for large tensors: a grid that fits the GPU, and a loop in it (5%); the same by
// bulk copies to shared memory, the TMA of sm_90 (4 to 5%).
//
// Not __ldcs, the same for what is read! It looks even better in a benchmark of its own, 10% at
// 2^17 elements. But a cache that is full of somebody else's data then keeps them, ours has to do
// with what little is left, and the kernel is 5 to 10% slower, for as long as nobody else comes:
// after a matrix product, for example.
template <typename T, int kVectors, bool kStreaming>
__global__ void add2_vector(T* c, const T* a, const T* b, int64_t n) {
  constexpr int kElements = sizeof(int4) / sizeof(T);
  const int64_t first = (blockIdx.x * int64_t(blockDim.x) * kVectors + threadIdx.x) * kElements;
  const int64_t step = int64_t(blockDim.x) * kElements;
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
      auto* out = reinterpret_cast<int4*>(c + first + v * step);
      if (kStreaming) {
        __stcs(out, x[v].bytes);
      } else {
        *out = x[v].bytes;
      }
    }
  } else {  // the last threads: what fills no vectors
    for (int64_t i = first; i < n; i += step) {
      for (int64_t k = i; k < i + kElements && k < n; ++k) c[k] = add(a[k], b[k]);
    }
  }
}

// Unaligned: a view such as x[1:] does not start at a multiple of 16 bytes, and a 16-byte load from
// there is an error. Then each thread takes single elements, a block's width apart, so that a warp
// still reads neighbours and each thread still has several loads in flight.
template <typename T, int kSteps>
__global__ void add2_unaligned(T* c, const T* a, const T* b, int64_t n) {
  const int64_t first = blockIdx.x * int64_t(blockDim.x) * kSteps + threadIdx.x;
  T x[kSteps], y[kSteps];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int64_t i = first + k * int64_t(blockDim.x);
    if (i < n) x[k] = a[i], y[k] = b[i];
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int64_t i = first + k * int64_t(blockDim.x);
    if (i < n) c[i] = add(x[k], y[k]);
  }
}

// Which of them, and how many threads a block. Aligned: all three pointers at a multiple of 16.
Add2Kernel choose(const void* c, const void* a, const void* b, int64_t bytes) {
  const auto addresses = reinterpret_cast<uintptr_t>(c) | reinterpret_cast<uintptr_t>(a) |
                         reinterpret_cast<uintptr_t>(b);
  if (addresses % sizeof(int4) != 0) return ADD2_KERNEL_UNALIGNED;
  if (bytes < (4 << 20)) return ADD2_KERNEL_SMALL;
  return bytes < (16 << 20) ? ADD2_KERNEL_MEDIUM : ADD2_KERNEL_LARGE;
}

template <typename T>
const char* launch(Add2Kernel kernel, void* c, const void* a, const void* b, int64_t n,
                   cudaStream_t stream) {
  constexpr int kElements = sizeof(int4) / sizeof(T);
  constexpr int kSteps = sizeof(T) == 8 ? 2 : 4;
  auto* out = static_cast<T*>(c);
  auto* x = static_cast<const T*>(a);
  auto* y = static_cast<const T*>(b);
  // A grid has at most 2^31 - 1 blocks in x: with 256 threads of one element each that is 2^39
  // elements, more than any GPU's memory holds, so the number of blocks needs no check.
  const auto blocks = [n](int64_t elements) { return unsigned((n + elements - 1) / elements); };
  switch (kernel) {
    case ADD2_KERNEL_PLAIN:
      add2_plain<<<blocks(1024), 1024, 0, stream>>>(out, x, y, n);
      break;
    case ADD2_KERNEL_VECTOR:
      add2_vector<T, 1, false><<<blocks(1024 * kElements), 1024, 0, stream>>>(out, x, y, n);
      break;
    case ADD2_KERNEL_SMALL:
      add2_vector<T, 1, false><<<blocks(256 * kElements), 256, 0, stream>>>(out, x, y, n);
      break;
    case ADD2_KERNEL_MEDIUM:
      add2_vector<T, 2, true><<<blocks(256 * 2 * kElements), 256, 0, stream>>>(out, x, y, n);
      break;
    case ADD2_KERNEL_LARGE:
      add2_vector<T, 1, true><<<blocks(1024 * kElements), 1024, 0, stream>>>(out, x, y, n);
      break;
    case ADD2_KERNEL_UNALIGNED:
      add2_unaligned<T, kSteps><<<blocks(256 * kSteps), 256, 0, stream>>>(out, x, y, n);
      break;
    default:
      return "unknown kernel";
  }
  // A launch reports its failure here, and nowhere else.
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

extern "C" int add2_current_cuda_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

extern "C" const char* launch_add2_cuda_kernel(Add2Kernel kernel, void* c, const void* a,
                                               const void* b, int64_t n, Add2Dtype dtype,
                                               CUstream_st* stream) {
  if (n <= 0) return nullptr;  // a grid of zero blocks would be an error
  switch (dtype) {             // from a dtype known at run time to a type known at compile time
    case ADD2_FLOAT32:
      return launch<float>(kernel, c, a, b, n, stream);
    case ADD2_FLOAT64:
      return launch<double>(kernel, c, a, b, n, stream);
    case ADD2_FLOAT16:
      return launch<__half>(kernel, c, a, b, n, stream);
    case ADD2_BFLOAT16:
      return launch<__nv_bfloat16>(kernel, c, a, b, n, stream);
  }
  return "unknown dtype";
}

extern "C" const char* launch_add2_cuda(void* c, const void* a, const void* b, int64_t n,
                                        Add2Dtype dtype, CUstream_st* stream) {
  const int64_t bytes = n * (dtype == ADD2_FLOAT64 ? 8 : dtype == ADD2_FLOAT32 ? 4 : 2);
  return launch_add2_cuda_kernel(choose(c, a, b, bytes), c, a, b, n, dtype, stream);
}
