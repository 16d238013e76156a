// The launcher of int4_linear_kernel.cu. It is asynchronous, and needs the tensors' device to be
// current.
#pragma once

struct CUstream_st;  // a cudaStream_t points to it

// The memory of contiguous tensors; each pointer is a multiple of 16.
struct Int4Call {
  const void *packed, *scale, *zero;
  int n, k;
  bool is_float16;       // otherwise bfloat16
  void* y;               // [batch, n]; without x: [n, k]
  const void *x, *bias;  // x: [batch, k]; bias: [n], or null
  int batch;
};

// y = x * W^T + bias; without x: y = W. Returns nullptr, or a static error message.
const char* launch_int4_linear(const Int4Call& call, CUstream_st* stream);
