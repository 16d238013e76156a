// The launcher of gated_linear_kernel.cu. It is asynchronous, and needs the tensors' device to be
// current.
#pragma once
struct CUstream_st;  // a cudaStream_t points to it

// y = silu(x Wg^T) * (x Wu^T), bfloat16. y: [rows, n / 2]; x: [rows, k]; w = interleave(Wg, Wu),
// [n, k], n a multiple of 16, k of 8. All are contiguous; each pointer is a multiple of 16. Not
// done, and no error: the GPU has no wgmma. Returns nullptr, or a static error message.
const char* launch_gated_linear(void* y, const void* x, const void* w, int rows, int n, int k,
                                bool* is_done, CUstream_st* stream);
