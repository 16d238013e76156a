// Fast, but wrong: the operator has one more argument than the task names.
// check says: the task asks for
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>

using torch::stable::Tensor;

Tensor running_sum(const Tensor& x, int64_t) {
  if (x.dim() != 1 || x.scalar_type() != torch::headeronly::ScalarType::Float || !x.is_contiguous())
    throw std::runtime_error("running_sum: expected a contiguous float32 vector");
  Tensor y = torch::stable::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = (i == 0 ? 0 : to[i - 1]) + from[i];
  return y;
}

STABLE_TORCH_LIBRARY(practice, m) { m.def("running_sum(Tensor x, int n=0) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(practice, CPU, m) { m.impl("running_sum", TORCH_BOX(&running_sum)); }
