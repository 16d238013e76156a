// The launchers: pointers, sizes, dtypes, stream. All tensors are contiguous, [rows, width].
#pragma once
#include <stdint.h>

struct CUstream_st;  // what a cudaStream_t points to

enum RmsDtype { RMS_FLOAT32, RMS_FLOAT64, RMS_FLOAT16, RMS_BFLOAT16 };

// s = a + b, rounded; rstd = 1 / sqrt(mean(s * s) + eps) of each row, in float32, or in float64 for
// float64; y = s * rstd * weight. weight_dtype is dtype or, for the 16-bit ones, float32.
struct RmsForward {
  void *y, *s, *rstd;
  const void *a, *b, *weight;
  double eps;
  int64_t rows, width;
  RmsDtype dtype, weight_dtype;
};

// dx is the gradient of a and of b; dweight that of weight, of its dtype. ds may be NULL (zero).
struct RmsBackward {
  void *dx, *dweight, *scratch;  // scratch: rms_scratch_size() elements of rstd's dtype
  const void *dy, *ds, *s, *weight, *rstd;
  int64_t rows, width;
  RmsDtype dtype, weight_dtype;
};

// Asynchronous on the current CUDA device. Return NULL on success, otherwise a static error message
// (do not free).
const char* launch_add_rms_norm(const RmsForward& x, CUstream_st* stream);
const char* launch_add_rms_norm(const RmsBackward& x, CUstream_st* stream);
int64_t rms_scratch_size(const RmsBackward& x);  // asks for all of x but scratch

// The same on the CPU, in plain loops.
void add_rms_norm_cpu(const RmsForward& x);
void add_rms_norm_cpu(const RmsBackward& x);
