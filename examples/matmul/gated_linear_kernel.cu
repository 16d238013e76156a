// The launcher of gated_linear, for gated_linear.cpp: the top rung of the ladder with its epilogue.
#include "product.cuh"

bool gated_linear_runs_here() { return is_hopper(); }

const char* launch_gated_linear(void* y, const void* x, const void* w, int64_t rows, int64_t n,
                                int64_t k, cudaStream_t stream) {
  return launch_product<true>(static_cast<bf16*>(y), static_cast<const bf16*>(x),
                              static_cast<const bf16*>(w), rows, n, k, -1, stream);
}
