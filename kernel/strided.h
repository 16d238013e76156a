// For inputs whose elements do not lie as the result's do, such as x[:, ::2], or a transposed
// matrix and another one: the kernels walk them. To copy them first
// would move 1.7 times the bytes or more.
#pragma once

#include "add2.h"

// The result's dimensions from the inside out: their sizes, and how many elements lie between one
// and the next in a and in b; in the result element follows element. Each has two or more elements,
// or is the only one: so 48 are more than any memory holds.
struct Add2Walk {
  static constexpr int kMost = 48;
  int count;  // 1 or more
  int64_t sizes[kMost], a_steps[kMost], b_steps[kMost];
};

// As launch_add2_cpu and launch_add2_cuda.
const char* launch_strided_cpu(void* c, const void* a, const void* b, const Add2Walk& walk,
                               Add2Dtype dtype);
const char* launch_strided_cuda(void* c, const void* a, const void* b, const Add2Walk& walk,
                                Add2Dtype dtype, CUstream_st* stream);
