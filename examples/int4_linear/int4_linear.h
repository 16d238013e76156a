// The launcher of int4_linear_kernel.cu. It is asynchronous, and needs the tensors' device to be
// current.
#pragma once
struct Plan;         // plan.h
struct CUstream_st;  // a cudaStream_t points to it

constexpr int kFewRows = 8, kStrip = 16;

// The memory of contiguous tensors; each pointer is a multiple of 16.
struct Int4Call {
  const void *packed, *scale, *zero;
  int n, k;
  bool is_float16;       // otherwise bfloat16
  bool is_gated;         // y = silu(even rows of W) * odd rows: [batch, n / 2]
  void* y;               // [batch, n]; without x: [n, k]
  const void *x, *bias;  // x: [batch, k]; bias: [n], or null
  int batch;
  // Parts of an RMSNorm, or null: in bfloat16 for up to kFewRows rows. `squares` belong to the norm
  // before: sums of the squares of kStrip columns of its input. y is multiplied by 1 / rms of each
  // row, before the bias.
  const float* squares;  // [batch, k / kStrip]
  float eps;
  // The next norm: y becomes residual + y, `weighted` y * norm_weight, and its squares follow.
  const void *residual, *norm_weight;  // [batch, n] and [n]
  void* weighted;                      // [batch, n]
  float* next_squares;                 // [batch, n / kStrip]
};

// y = x * W^T + bias. Not done, and no error: torch's matmul with W is the better way.
// Each returns nullptr, or a static error message.
extern "C" const char* launch_int4_linear(const Int4Call& call, bool* is_done, CUstream_st* stream);
extern "C" const char* launch_plan(const Int4Call& call, const Plan& plan, CUstream_st* stream);
extern "C" const char* launch_dequantize(const Int4Call& call, CUstream_st* stream);  // y = W

// The parts of an RMSNorm in kernels of their own, for more rows: residual + y; and y = x / rms,
// for which y is [batch, k].
extern "C" const char* launch_add_residual(const Int4Call& call, CUstream_st* stream);
extern "C" const char* launch_scale_rows(const Int4Call& call, CUstream_st* stream);
