// Right for one size: of numbers, float32. Others are read as if they were.
// check says: dtypes:
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>

using torch::stable::Tensor;

Tensor running_sum(const Tensor& x) {
  if (x.dim() != 1 || !x.is_contiguous())
    throw std::runtime_error("running_sum: expected a contiguous vector");
  Tensor y = torch::stable::empty_like(x);
  const float* from = static_cast<const float*>(x.const_data_ptr());
  float* to = static_cast<float*>(y.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = (i == 0 ? 0 : to[i - 1]) + from[i];
  return y;
}

STABLE_TORCH_LIBRARY(practice, m) { m.def("running_sum(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(practice, CPU, m) { m.impl("running_sum", TORCH_BOX(&running_sum)); }
