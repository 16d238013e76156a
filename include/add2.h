// The launchers of add2: c[i] = a[i] + b[i] for 0 <= i < n.
//
// Plain C: pointers, a length, the dtype, a stream. There is no torch here, so a C++ program, a
// test or Python's ctypes calls them as the operator does. They trust their caller: kernel/add2.cpp
// is where tensors are checked.
#pragma once

#include <stdint.h>

#define ADD2_API __attribute__((visibility("default")))  // the rest of the library is hidden

struct CUstream_st;  // a cudaStream_t points to it; declared here to need no CUDA header

#ifdef __cplusplus
extern "C" {
#endif

enum Add2Dtype { ADD2_FLOAT32 = 0, ADD2_FLOAT64 = 1, ADD2_FLOAT16 = 2, ADD2_BFLOAT16 = 3 };

// Each returns NULL on success, otherwise a static error message (do not free). Pointers are
// aligned to their element; c may be a or b, but must not overlap them in any other way.

// In host memory, on torch's thread pool; has finished when it returns.
ADD2_API const char* launch_add2_cpu(void* c, const void* a, const void* b, int64_t n,
                                     enum Add2Dtype dtype);

// In memory of the current CUDA device; asynchronous, in the order of the stream.
ADD2_API const char* launch_add2_cuda(void* c, const void* a, const void* b, int64_t n,
                                      enum Add2Dtype dtype, struct CUstream_st* stream);

// The same by one kernel of kernel/add2_kernel.cuh, for comparison. VECTOR needs pointers at
// multiples of 16 bytes.
enum Add2Kernel { ADD2_KERNEL_PLAIN = 0, ADD2_KERNEL_VECTOR = 1, ADD2_KERNEL_UNALIGNED = 2 };

ADD2_API const char* launch_add2_cuda_kernel(enum Add2Kernel kernel, void* c, const void* a,
                                             const void* b, int64_t n, enum Add2Dtype dtype,
                                             struct CUstream_st* stream);

#ifdef __cplusplus
}
#endif
