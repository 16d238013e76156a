// The launcher of int4_linear_kernel.cu. It is asynchronous, and needs the tensors' device to be
// current.
#pragma once
struct Plan;         // plan.h
struct CUstream_st;  // a cudaStream_t points to it

// The memory of contiguous tensors; each pointer is a multiple of 16.
struct Int4Call {
  const void *packed, *scale, *zero;
  int n, k;
  bool is_float16;       // otherwise bfloat16
  bool is_gated;         // y = silu(even rows of W) * odd rows: [batch, n / 2]
  void* y;               // [batch, n]; without x: [n, k]
  const void *x, *bias;  // x: [batch, k]; bias: [n], or null
  int batch;
};

// y = x * W^T + bias. Not done, and no error: torch's matmul with W is the better way.
// Each returns nullptr, or a static error message.
extern "C" const char* launch_int4_linear(const Int4Call& call, bool* is_done, CUstream_st* stream);
extern "C" const char* launch_plan(const Int4Call& call, const Plan& plan, CUstream_st* stream);
extern "C" const char* launch_dequantize(const Int4Call& call, CUstream_st* stream);  // y = W
