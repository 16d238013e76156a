// The launchers of add2: c[i] = a[i] + b[i] for 0 <= i < n.
//
// Plain C: pointers, a length, the dtype, a stream. This header includes nothing of torch or CUDA,
// so a C++ program, a test or Python's ctypes calls the launchers as the operator does. They trust
// their caller: kernel/add2.cpp is where tensors are checked.
#pragma once

#include <stdint.h>

#define ADD2_VERSION "0.1.0"  // add2/__init__.py has the same, and compares

#define ADD2_API __attribute__((visibility("default")))  // the rest of the library is hidden

struct CUstream_st;  // a cudaStream_t points to it; declared here to need no CUDA header

#ifdef __cplusplus
extern "C" {
#endif

enum Add2Dtype { ADD2_FLOAT32, ADD2_FLOAT64, ADD2_FLOAT16, ADD2_BFLOAT16 };

// Each returns NULL on success, otherwise a static error message (do not free). Pointers are
// aligned to their element; c may be a or b, but must not overlap them in any other way.

// In host memory, on torch's thread pool; has finished when it returns.
ADD2_API const char* launch_add2_cpu(void* c, const void* a, const void* b, int64_t n,
                                     enum Add2Dtype dtype);

// In memory of the current CUDA device; asynchronous, in the order of the stream.
ADD2_API const char* launch_add2_cuda(void* c, const void* a, const void* b, int64_t n,
                                      enum Add2Dtype dtype, struct CUstream_st* stream);

#ifdef __cplusplus
}
#endif
