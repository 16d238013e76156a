// fused::add_scale_relu(Tensor a, Tensor b, float scale) -> Tensor, on torch's ABI-stable headers.
#include "fused.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Weak: a torch without CUDA does not have it, and has no CUDA tensors either.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace {

// What the kernels do not look at. Nothing is written before all of it is known to be right.
void check(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(a.dim() == b.dim(),
                  "add_scale_relu: a and b differ in their number of dimensions");
  for (int64_t i = 0; i < a.dim(); ++i) {
    STD_TORCH_CHECK(a.size(i) == b.size(i), "add_scale_relu: a and b differ in dimension ", i);
  }
  STD_TORCH_CHECK(
      a.scalar_type() == b.scalar_type() && a.get_device_index() == b.get_device_index(),
      "add_scale_relu: a and b differ in dtype or device");
  STD_TORCH_CHECK(a.scalar_type() == ScalarType::Float || a.scalar_type() == ScalarType::Double,
                  "add_scale_relu: expected float32 or float64");
}

template <typename T>
void loop(void* y, const void* a, const void* b, double scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T x = T(scale) * (static_cast<const T*>(a)[i] + static_cast<const T*>(b)[i]);
    static_cast<T*>(y)[i] = x < 0 ? T(0) : x;
  }
}

Tensor add_scale_relu_cpu(const Tensor& a, const Tensor& b, double scale) {
  check(a, b);
  const Tensor x = torch::stable::contiguous(a), z = torch::stable::contiguous(b);
  const Tensor y = torch::stable::empty_like(x);
  (a.scalar_type() == ScalarType::Double ? loop<double>
                                         : loop<float>)(y.mutable_data_ptr(), x.const_data_ptr(),
                                                        z.const_data_ptr(), scale, a.numel());
  return y;
}

#ifdef WITH_CUDA
Tensor add_scale_relu_cuda(const Tensor& a, const Tensor& b, double scale) {
  check(a, b);
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  const Tensor x = torch::stable::contiguous(a), z = torch::stable::contiguous(b);
  const Tensor y = torch::stable::empty_like(x);
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(a.get_device_index(), &stream));
  const char* error = launch_add_scale_relu_cuda(
      y.mutable_data_ptr(), x.const_data_ptr(), z.const_data_ptr(), scale, a.numel(),
      a.scalar_type() == ScalarType::Double, static_cast<CUstream_st*>(stream));
  STD_TORCH_CHECK(error == nullptr, "add_scale_relu: ", error);
  return y;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY(fused, m) {
  m.def("add_scale_relu(Tensor a, Tensor b, float scale) -> Tensor");
}

// TORCH_BOX takes the arguments off the dispatcher's stack, by the function's own signature.
STABLE_TORCH_LIBRARY_IMPL(fused, CPU, m) {
  m.impl("add_scale_relu", TORCH_BOX(&add_scale_relu_cpu));
}

#ifdef WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(fused, CUDA, m) {
  m.impl("add_scale_relu", TORCH_BOX(&add_scale_relu_cuda));
}
#endif
