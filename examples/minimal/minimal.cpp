// The operator. kernel/add2.cpp adds other dtypes, strides, and messages that say what was wrong.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
const char* launch_add(float* c, const float* a, const float* b, int64_t n, void* stream);
Tensor add(const Tensor& a, const Tensor& b) {
  const bool alike = a.sizes().equals(b.sizes()) && a.get_device_index() == b.get_device_index();
  if (!alike) throw std::runtime_error("add: a and b differ in shape or device");
  for (const Tensor& x : {a, b})
    if (x.scalar_type() != torch::headeronly::ScalarType::Float || !x.is_contiguous())
      throw std::runtime_error("add: expected float32 and contiguous");
  const Tensor c = torch::stable::empty_like(a);
  const auto *x = a.const_data_ptr<float>(), *y = b.const_data_ptr<float>();
  auto* z = c.mutable_data_ptr<float>();
  if (a.is_cpu()) {
    for (int64_t i = 0; i < a.numel(); ++i) z[i] = x[i] + y[i];
    return c;
  }
#ifdef USE_CUDA
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  void* stream;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(a.get_device_index(), &stream));
  if (const char* error = launch_add(z, x, y, a.numel(), stream)) throw std::runtime_error(error);
#endif
  return c;
}
STABLE_TORCH_LIBRARY(minimal, m) { m.def("add(Tensor a, Tensor b) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(minimal, CPU, m) { m.impl("add", TORCH_BOX(&add)); }
#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(minimal, CUDA, m) { m.impl("add", TORCH_BOX(&add)); }
#endif
