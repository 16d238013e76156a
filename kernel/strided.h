// Inputs whose layout differs from the result's, such as x[:, ::2], or a transposed matrix added to
// a row-major one. The kernels follow their strides: to copy them first would move 1.7 times the
// bytes or more.
#pragma once

#include "add2.h"

// The result's dimensions, innermost first: their sizes, and the distance between neighbours in a
// and in b, in elements. The result has no gaps. Dimensions of size 1 are dropped, so 48 of them
// would be 2^48 elements, more than any memory holds.
struct Add2Walk {
  static constexpr int kMaxDims = 48;
  int count;  // 1 or more
  int64_t sizes[kMaxDims], a_steps[kMaxDims], b_steps[kMaxDims];

  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < count; ++d) n *= sizes[d];
    return n;
  }
};

// Like launch_add2_cpu and launch_add2_cuda, but with strides. No size may be 0.
const char* launch_strided_cpu(void* c, const void* a, const void* b, const Add2Walk& walk,
                               Add2Dtype dtype);
const char* launch_strided_cuda(void* c, const void* a, const void* b, const Add2Walk& walk,
                                Add2Dtype dtype, CUstream_st* stream);
