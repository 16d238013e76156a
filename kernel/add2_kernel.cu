// The launcher of the CUDA kernels: which kernel, how many blocks, which type. No torch here, so
// this file compiles in about a second.
#include <cuda_runtime.h>

#include "add2.h"
#include "add2_kernel.cuh"

namespace {

enum Add2Kernel { ADD2_KERNEL_PLAIN, ADD2_KERNEL_VECTOR, ADD2_KERNEL_UNALIGNED };

// 16-byte loads need all three pointers at multiples of 16.
Add2Kernel choose(const void* c, const void* a, const void* b) {
  const auto addresses = reinterpret_cast<uintptr_t>(c) | reinterpret_cast<uintptr_t>(a) |
                         reinterpret_cast<uintptr_t>(b);
  return addresses % sizeof(int4) == 0 ? ADD2_KERNEL_VECTOR : ADD2_KERNEL_UNALIGNED;
}

template <typename T>
const char* launch(Add2Kernel kernel, void* c, const void* a, const void* b, int64_t n,
                   cudaStream_t stream) {
  auto* out = static_cast<T*>(c);
  auto* x = static_cast<const T*>(a);
  auto* y = static_cast<const T*>(b);
  // A grid has at most 2^31 - 1 blocks in x: with kThreads elements each that is 2^39 elements,
  // more than any GPU's memory holds, so the number of blocks needs no check.
  const auto blocks = [](int64_t n, int64_t per_block) {
    return static_cast<unsigned>((n + per_block - 1) / per_block);
  };
  switch (kernel) {
    case ADD2_KERNEL_PLAIN:
      add2_plain<<<blocks(n, 1024), 1024, 0, stream>>>(out, x, y, n);
      break;
    case ADD2_KERNEL_VECTOR: {
      constexpr int kElements = sizeof(int4) / sizeof(T);
      const int threads = n * sizeof(T) < kLargeBytes ? kThreads : kLargeThreads;
      unsigned grid = blocks(n / kElements, threads);
      if (n % kElements != 0) ++grid;  // a block for the elements after the last whole vector
      add2_vector<<<grid, threads, 0, stream>>>(out, x, y, n);
      break;
    }
    case ADD2_KERNEL_UNALIGNED:
      add2_unaligned<<<blocks(n, kThreads * kSteps), kThreads, 0, stream>>>(out, x, y, n);
      break;
    default:
      return "unknown kernel";
  }
  // A launch reports its failure here, and nowhere else.
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

// By one of the kernels. VECTOR needs pointers at multiples of 16 bytes. The builds hide this;
// `time.py --kernels` compiles this file once more, and calls it.
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
  return launch_add2_cuda_kernel(choose(c, a, b), c, a, b, n, dtype, stream);
}
