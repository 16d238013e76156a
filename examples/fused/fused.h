#pragma once
#include <stdint.h>

struct CUstream_st;  // what a cudaStream_t points to

// y[i] = max(scale * (a[i] + b[i]), 0) for 0 <= i < n, in memory of the current CUDA device;
// asynchronous. Returns NULL on success, otherwise an error message.
extern "C" const char* launch_add_scale_relu_cuda(void* y, const void* a, const void* b,
                                                  double scale, int64_t n, bool is_double,
                                                  CUstream_st* stream);
