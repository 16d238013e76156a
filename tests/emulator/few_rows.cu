// examples/int4_linear's kernel for few rows in bfloat16, in three of its shapes: the one for any
// GPU, a persistent one with two warps along W, and one that converts codes first. And two before
// and after a norm.
#include "common/launch.cuh"

#define __CUDA_ARCH_FEAT_SM90_ALL  // for the guard of the last two
#include "int4_linear/few_rows.cuh"

using namespace four_bit;

template <typename S>
const char* launch_shape(const Int4Call& call, int tiles, int blocks) {
  const dim3 grid(blocks, divide_up(call.batch, S::kBatch));
  return launch(few_rows<__nv_bfloat16, S>, {grid, S::kThreads, S::kShared}, nullptr, call, tiles);
}

extern "C" const char* launch_few_rows(int shape, __nv_bfloat16* y, const __nv_bfloat16* x,
                                       const void* packed, const void* scale, const void* zero,
                                       const void* bias, bool is_gated, int batch, int n, int k,
                                       int tiles, cudaStream_t) {
  const Int4Call call = {packed, scale, zero, n, k, false, is_gated, y, x, bias, batch};
  if (shape == 0) return launch_shape<FewRowsShape<0, 4, 2, 1>>(call, tiles, tiles);
  if (shape == 4) return launch_shape<FewRowsShape<4, 4, 3, 1>>(call, tiles, 1);
  return launch_shape<FewRowsShape<5, 2, 2, 1>>(call, tiles, tiles);
}

template <Norm kNorm>
const char* launch_with_norm(int shape, const Int4Call& call, int tiles) {
  if (shape == 0) return launch_shape<FewRowsShape<0, 4, 2, 1, kNorm>>(call, tiles, tiles);
  return launch_shape<FewRowsShape<1, 4, 3, 1, kNorm>>(call, tiles, 2);
}

// A product before a norm; and one after it.
extern "C" const char* launch_before_norm(int shape, void* y, void* weighted, float* next_squares,
                                          const void* x, const void* packed, const void* scale,
                                          const void* zero, const void* bias, const void* residual,
                                          const void* norm_weight, int batch, int n, int k,
                                          int tiles, cudaStream_t) {
  Int4Call call = {packed, scale, zero, n, k, false, false, y, x, bias, batch};
  call.residual = residual;
  call.norm_weight = norm_weight;
  call.weighted = weighted;
  call.next_squares = next_squares;
  return launch_with_norm<Norm::kBefore>(shape, call, tiles);
}
extern "C" const char* launch_after_norm(int shape, void* y, const void* x, const float* squares,
                                         float eps, const void* packed, const void* scale,
                                         const void* zero, const void* bias, bool is_gated,
                                         int batch, int n, int k, int tiles, cudaStream_t) {
  Int4Call call = {packed, scale, zero, n, k, false, is_gated, y, x, bias, batch};
  call.squares = squares;
  call.eps = eps;
  return launch_with_norm<Norm::kAfter>(shape, call, tiles);
}
