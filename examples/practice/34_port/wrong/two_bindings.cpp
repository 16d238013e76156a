// Right, but slow: registers the operator, but takes half a minute to compile, once for each
// version of Python.
// check says: torch/extension.h
#include <torch/extension.h>

torch::Tensor running_sum(const torch::Tensor& x) {
  TORCH_CHECK(x.dim() == 1 && x.scalar_type() == torch::kFloat && x.is_contiguous() && x.is_cpu(),
              "running_sum: expected a contiguous float32 vector on the CPU");
  torch::Tensor y = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = (i == 0 ? 0 : to[i - 1]) + from[i];
  return y;
}

TORCH_LIBRARY(practice, m) { m.def("running_sum(Tensor x) -> Tensor", &running_sum); }
