// scaled_relu(Tensor a, Tensor b, float scale) -> Tensor: y = relu(scale * (a + b)), as torch's
// dispatcher calls it. Only torch's ABI-stable headers are used: they compile in seconds, and the
// library runs on TORCH_TARGET_VERSION and later. USE_CUDA: the .cu file is part of the library.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

using torch::headeronly::BFloat16, torch::headeronly::Half, torch::headeronly::ScalarType;
using torch::stable::Tensor;

// In scaled_relu_kernel.cu. Returns nullptr on success, otherwise an error message.
const char* launch_scaled_relu(void* y, const void* a, const void* b, double scale, int64_t n,
                               ScalarType dtype, void* stream);
// Weak, so that a library with CUDA code also loads where torch has no CUDA.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void**);

// A RuntimeError in Python. (STD_TORCH_CHECK crashes if the C++ runtime is linked statically.)
[[noreturn]] void refuse(const std::string& text) {
  throw std::runtime_error("scaled_relu: " + text);
}
std::string shape(const Tensor& x) {
  std::string text;
  for (int64_t size : x.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

// A kernel receives bare addresses and checks nothing, so every check is here.
void check(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) refuse("a or b is None, expected two tensors");
  if (a.get_device_index() != b.get_device_index()) refuse("a and b are on different devices");
  const ScalarType dtype = a.scalar_type(), found = b.scalar_type();
  const bool is_known = dtype == ScalarType::Float || dtype == ScalarType::Double ||
                        dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
  if (!is_known) refuse(std::string("no kernel for ") + toString(dtype));
  if (found != dtype) refuse(std::string("b is ") + toString(found) + ", a " + toString(dtype));
  if (!a.sizes().equals(b.sizes())) refuse("b has shape " + shape(b) + ", expected " + shape(a));
}

template <typename T, typename Wide>  // computes in Wide, rounds to T once
void compute(void* out, const void* p, const void* q, double scale, int64_t n) {
  auto* y = static_cast<T*>(out);
  auto *a = static_cast<const T*>(p), *b = static_cast<const T*>(q);
  torch::stable::parallel_for(0, n, 32768, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Wide x = Wide(scale) * (Wide(a[i]) + Wide(b[i]));
      y[i] = T(x < 0 ? Wide(0) : x);  // not max(x, 0), which would hide a NaN
    }
  });
}

Tensor scaled_relu(const Tensor& a_in, const Tensor& b_in, double scale) {
  check(a_in, b_in);
  const Tensor a = torch::stable::contiguous(a_in), b = torch::stable::contiguous(b_in);
  const Tensor y = torch::stable::empty_like(a);
  void* out = y.mutable_data_ptr();
  const void *p = a.const_data_ptr(), *q = b.const_data_ptr();
  const ScalarType dtype = a.scalar_type();
  if (a.is_cpu()) {
    if (dtype == ScalarType::Float) compute<float, float>(out, p, q, scale, a.numel());
    if (dtype == ScalarType::Double) compute<double, double>(out, p, q, scale, a.numel());
    if (dtype == ScalarType::Half) compute<Half, float>(out, p, q, scale, a.numel());
    if (dtype == ScalarType::BFloat16) compute<BFloat16, float>(out, p, q, scale, a.numel());
    return y;
  }
#ifdef USE_CUDA
  // A kernel runs on the current device, and in the order of the stream that it is given.
  const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
  void* stream;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(a.get_device_index(), &stream));
  const char* error = launch_scaled_relu(out, p, q, scale, a.numel(), dtype, stream);
  if (error) refuse(error);
  return y;
#else
  refuse("built without CUDA code; build it again where setup.py finds nvcc");
#endif
}

STABLE_TORCH_LIBRARY(scaled_relu, m) {
  m.def("scaled_relu(Tensor a, Tensor b, float scale) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(scaled_relu, CPU, m) { m.impl("scaled_relu", TORCH_BOX(&scaled_relu)); }
STABLE_TORCH_LIBRARY_IMPL(scaled_relu, CUDA, m) { m.impl("scaled_relu", TORCH_BOX(&scaled_relu)); }
