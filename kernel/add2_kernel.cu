// The launcher of the CUDA kernels: which kernel, how many blocks, which type. No torch here, so
// this file compiles in about a second.
#include <cuda_runtime.h>

#include "add2.h"
#include "add2_kernel.cuh"

namespace {

// Which kernel. All but plain and unaligned need all three pointers at multiples of 16.
Add2Kernel choose(const void* c, const void* a, const void* b, int64_t bytes) {
  const auto addresses = reinterpret_cast<uintptr_t>(c) | reinterpret_cast<uintptr_t>(a) |
                         reinterpret_cast<uintptr_t>(b);
  if (addresses % sizeof(int4) != 0) return ADD2_KERNEL_UNALIGNED;
  if (bytes < (4 << 20)) return ADD2_KERNEL_SMALL;
  return bytes < (16 << 20) ? ADD2_KERNEL_MEDIUM : ADD2_KERNEL_VECTOR;
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
      add2_vector<T, 1><<<blocks(1024 * kElements), 1024, 0, stream>>>(out, x, y, n);
      break;
    case ADD2_KERNEL_SMALL:
      add2_vector<T, 1><<<blocks(256 * kElements), 256, 0, stream>>>(out, x, y, n);
      break;
    case ADD2_KERNEL_MEDIUM:
      add2_vector<T, 2><<<blocks(256 * 2 * kElements), 256, 0, stream>>>(out, x, y, n);
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
