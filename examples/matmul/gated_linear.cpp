// The operator gated_linear on torch's ABI-stable headers: checks, allocation, launch. Where the
// kernel does not run: torch's own functions.
#include "gated_linear.h"

#include <algorithm>
#include <vector>

#include "common/linear.h"
#include "common/operator.h"

namespace {

constexpr Operator self = {"gated_linear"};

Tensor gated_linear(const Tensor& x, const Tensor& w) {
  self.expect_tensor("x", x);
  self.expect_tensor("w", w);
  const ScalarType dtype = w.scalar_type();
  if (dtype != ScalarType::Float && dtype != ScalarType::Double && dtype != ScalarType::Half &&
      dtype != ScalarType::BFloat16)
    self.refuse("w is ", toString(dtype), ", expected Float, Double, Half or BFloat16");
  if (w.dim() != 2 || w.size(0) % 16 != 0) {
    self.refuse("w is ", text(w.sizes()),
                ", expected [2 H, K] with H a multiple of 8: use interleave()");
  }
  if (x.dim() == 0) self.refuse("x has no dimension, expected [..., K]");
  const int64_t n = w.size(0), k = w.size(1), last = x.dim() - 1;
  std::vector<int64_t> shape = x.sizes().vec();
  shape[last] = k;
  self.expect("x", x, w, dtype, shape);
  int64_t rows = 1;  // not numel / k, as k may be 0
  for (int64_t i = 0; i < last; ++i) rows *= shape[i];

  shape[last] = n / 2;
  const Tensor result = torch::stable::new_empty(x, shape);
  if (result.numel() == 0) return result;
  const Tensor flat = torch::stable::reshape(x, {rows, k});
#ifdef USE_CUDA
  const int64_t most = std::max({rows, n, k}), limit = int64_t{1} << 31;
  if (x.is_cuda() && dtype == ScalarType::BFloat16 && k > 0 && k % 8 == 0 && most < limit) {
    const Tensor left = contiguous_16(flat), right = contiguous_16(w);
    bool is_done = false;
    self.on_gpu(x, [&](CUstream_st* stream) {
      return launch_gated_linear(result.mutable_data_ptr(), left.const_data_ptr(),
                                 right.const_data_ptr(), static_cast<int>(rows),
                                 static_cast<int>(n), static_cast<int>(k), &is_done, stream);
    });
    if (is_done) return result;
  }
#endif
  linear::by_torch(torch::stable::view(result, {rows, n / 2}), flat, w, std::nullopt, 8);
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY(gated_linear, m) { m.def("gated_linear(Tensor x, Tensor w) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(gated_linear, CPU, m) {
  m.impl("gated_linear", TORCH_BOX(&gated_linear));
}

#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(gated_linear, CUDA, m) {
  m.impl("gated_linear", TORCH_BOX(&gated_linear));
}
#endif
