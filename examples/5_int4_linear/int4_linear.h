// The launchers in plain C: contiguous tensors as pointers, sizes, dtype, stream. Asynchronous on
// the current CUDA device. They return NULL on success, otherwise a static error message (do not
// free).
#pragma once
#include <stdint.h>

struct CUstream_st;  // what a cudaStream_t points to

typedef enum { INT4_FLOAT16, INT4_BFLOAT16 } Int4Dtype;

#ifdef __cplusplus
extern "C" {
#endif

// y [batch, n] = x [batch, k] * W^T + bias. bias may be NULL. All pointers are multiples of 16.
const char* launch_int4_linear(void* y, const void* x, const void* packed, const void* scale,
                               const void* zero, const void* bias, int batch, int n, int k,
                               Int4Dtype dtype, struct CUstream_st* stream);

// W [n, k] in the dtype.
const char* launch_dequantize(void* weight, const void* packed, const void* scale, const void* zero,
                              int n, int k, Int4Dtype dtype, struct CUstream_st* stream);

#ifdef __cplusplus
}
#endif
