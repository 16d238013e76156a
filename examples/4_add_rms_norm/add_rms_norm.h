// The launchers in plain C: pointers, sizes, dtype, stream. All tensors are contiguous, [rows,
// width].
#pragma once
#include <stdint.h>

struct CUstream_st;  // what a cudaStream_t points to

typedef enum { RMS_FLOAT32, RMS_FLOAT64, RMS_FLOAT16, RMS_BFLOAT16 } RmsDtype;

#ifdef __cplusplus
extern "C" {
#endif

// s = a + b, rounded to the dtype; rstd = 1 / sqrt(mean(s * s) + eps) of each row; y = s * rstd *
// weight. rstd is float32, or float64 for float64. Asynchronous on the current CUDA device. Returns
// NULL on success, otherwise a static error message (do not free).
const char* launch_add_rms_norm(void* y, void* s, void* rstd, const void* a, const void* b,
                                const void* weight, double eps, int64_t rows, int64_t width,
                                RmsDtype dtype, CUstream_st* stream);

// dx is the gradient of a and of b; dweight that of weight. ds may be NULL (zero).
// partial: scratch of rms_partial_rows() x width elements of rstd's dtype.
const char* launch_add_rms_norm_backward(void* dx, void* dweight, void* partial, const void* dy,
                                         const void* ds, const void* s, const void* weight,
                                         const void* rstd, int64_t rows, int64_t width,
                                         RmsDtype dtype, CUstream_st* stream);
int64_t rms_partial_rows(int64_t rows, int64_t width, RmsDtype dtype);

// The same on the CPU, in plain loops.
const char* add_rms_norm_cpu(void* y, void* s, void* rstd, const void* a, const void* b,
                             const void* weight, double eps, int64_t rows, int64_t width,
                             RmsDtype dtype);
const char* add_rms_norm_backward_cpu(void* dx, void* dweight, const void* dy, const void* ds,
                                      const void* s, const void* weight, const void* rstd,
                                      int64_t rows, int64_t width, RmsDtype dtype);

#ifdef __cplusplus
}
#endif
