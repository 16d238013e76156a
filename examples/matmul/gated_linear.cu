// The kernel of gated_linear.py: the top rung of the ladder, with its epilogue.
#include "product.cuh"

// x is rows x k, w is n x k, both contiguous. Returns NULL or an error message.
extern "C" const char* launch_gated_linear(bf16* y, const bf16* x, const bf16* w, int rows, int n,
                                           int k, cudaStream_t stream) {
  return launch_product<true>({y, x, w, rows, n, k}, stream);
}
