// The launchers of add2: c[i] = a[i] + b[i] for 0 <= i < n.
//
// Plain C: pointers, a length, the dtype, a stream. There is no torch here, so a C++ program, a
// test or Python's ctypes calls them as the operator does. They trust their caller: kernel/add2.cpp
// is where tensors are checked.
#pragma once

#include <stdint.h>

#define ADD2_VERSION "0.1.0"  // add2/__init__.py has the same, and compares

#define ADD2_API __attribute__((visibility("default")))  // the rest of the library is hidden

struct CUstream_st;  // a cudaStream_t points to it; declared here to need no CUDA header

#ifdef __cplusplus
extern "C" {
#endif

// The dtypes, listed here and nowhere else in C++: the enum's name, torch's, the types of the CUDA
// kernels and of the CPU loop.
#define ADD2_DTYPES(ROW)                     \
  ROW(ADD2_FLOAT32, float32, float, float)   \
  ROW(ADD2_FLOAT64, float64, double, double) \
  ROW(ADD2_FLOAT16, float16, __half, Half)   \
  ROW(ADD2_BFLOAT16, bfloat16, __nv_bfloat16, BFloat16)

#define ADD2_ENUM(dtype, ...) dtype,
enum Add2Dtype { ADD2_DTYPES(ADD2_ENUM) };
#undef ADD2_ENUM

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
