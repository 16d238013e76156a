// fused::add_scale_relu(Tensor a, Tensor b, float scale) -> Tensor, on torch's ABI-stable headers.
#include "fused.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Weak: a torch without CUDA does not have it, and has no CUDA tensors either.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace {

// Python sees a RuntimeError with the text. (STD_TORCH_CHECK puts this file's path and line before
// it; and printing a number crashes where the C++ runtime is linked statically, as some machines'
// compilers are set up to do.)
[[noreturn]] void refuse(const char* text) {
  throw std::runtime_error(std::string("add_scale_relu: ") + text);
}

// The kernels check nothing, so all checks are here, before anything is written.
void check(const Tensor& a, const Tensor& b) {
  bool alike = a.dim() == b.dim();
  for (int64_t i = 0; alike && i < a.dim(); ++i) alike = a.size(i) == b.size(i);
  if (!alike) refuse("a and b differ in shape");
  const ScalarType dtype = a.scalar_type();
  if (b.scalar_type() != dtype || a.get_device_index() != b.get_device_index()) {
    refuse("a and b differ in dtype or device");
  }
  if (dtype != ScalarType::Float && dtype != ScalarType::Double) {
    refuse("expected float32 or float64");
  }
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
  if (error != nullptr) refuse(error);
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
