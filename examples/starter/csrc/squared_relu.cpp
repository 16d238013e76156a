// The operators squared_relu and squared_relu_backward, as torch's dispatcher calls them. Only
// torch's ABI-stable headers are used: they compile in seconds, and the library runs on
// TORCH_TARGET_VERSION and later. USE_CUDA: the .cu files are part of the library.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

#include "squared_relu.h"

using torch::stable::Tensor;

// Weak, so that a library with CUDA code also loads where torch has no CUDA.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void**);

namespace {

// A RuntimeError in Python. (STD_TORCH_CHECK crashes if the C++ runtime is linked statically.)
[[noreturn]] void refuse(const std::string& text) {
  throw std::runtime_error("squared_relu: " + text);
}

std::string shape(const Tensor& x) {
  std::string text;
  for (int64_t size : x.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

// A kernel receives bare addresses and checks nothing, so every check is here.
void check(const std::string& name, const Tensor& x) {
  if (!x.defined()) refuse(name + " is None, expected a tensor");
  const bool is_known = with_types(x.scalar_type(), [](auto, auto) {});
  if (!is_known) refuse(std::string("no kernel for ") + toString(x.scalar_type()));
  // `x.untyped_storage().resize_(0)` frees memory that x still names.
  int64_t bytes = 0, end = x.storage_offset() + 1;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(x.get(), &bytes));
  for (int64_t i = 0; i < x.dim(); ++i) end += (x.size(i) - 1) * x.stride(i);
  if (x.numel() > 0 && end * int64_t(x.element_size()) > bytes) {
    refuse(name + " has no memory any more: its storage was resized to " + std::to_string(bytes) +
           " bytes");
  }
}

void check_alike(const std::string& name, const Tensor& x, const Tensor& like) {
  if (x.device() != like.device()) refuse(name + " and x are on different devices");
  const ScalarType found = x.scalar_type(), expected = like.scalar_type();
  if (found != expected) {
    refuse(name + " is " + toString(found) + ", expected " + toString(expected));
  }
  if (!x.sizes().equals(like.sizes())) {
    refuse(name + " has shape " + shape(x) + ", expected " + shape(like));
  }
}

// Calls launch(stream). A kernel runs on the current device, so x's becomes that one, and in the
// order of the stream that it is given.
template <typename Launch>
void on_gpu(const Tensor& x, Launch launch) {
#ifdef USE_CUDA
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  if (const char* error = launch(stream)) refuse(error);
#else
  refuse("built without CUDA code; build it again where setup.py finds nvcc");
#endif
}

Tensor forward(const Tensor& x_in, double scale) {
  check("x", x_in);
  const Tensor x = torch::stable::contiguous(x_in), y = torch::stable::new_empty(x, x.sizes());
  void* to = y.mutable_data_ptr();
  const void* from = x.const_data_ptr();
  const int64_t n = x.numel();
  const ScalarType dtype = x.scalar_type();
  if (x.is_cpu()) {
    squared_relu_cpu(to, from, scale, n, dtype);
  } else {  // `auto` leaves out this call, and so the launcher, where there is no CUDA code
    on_gpu(x, [&](auto stream) { return launch_squared_relu(to, from, scale, n, dtype, stream); });
  }
  return y;
}

Tensor backward(const Tensor& grad_in, const Tensor& x_in, double scale) {
  check("grad", grad_in);
  check("x", x_in);
  check_alike("grad", grad_in, x_in);
  const Tensor grad = torch::stable::contiguous(grad_in), x = torch::stable::contiguous(x_in);
  const Tensor dx = torch::stable::new_empty(x, x.sizes());
  void* to = dx.mutable_data_ptr();
  const void *g = grad.const_data_ptr(), *from = x.const_data_ptr();
  const int64_t n = x.numel();
  const ScalarType dtype = x.scalar_type();
  if (x.is_cpu()) {
    squared_relu_backward_cpu(to, g, from, scale, n, dtype);
  } else {
    on_gpu(x, [&](auto stream) {
      return launch_squared_relu_backward(to, g, from, scale, n, dtype, stream);
    });
  }
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY(squared_relu, m) {
  m.def("squared_relu(Tensor x, float scale) -> Tensor");
  m.def("squared_relu_backward(Tensor grad, Tensor x, float scale) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(squared_relu, CPU, m) {
  m.impl("squared_relu", TORCH_BOX(&forward));
  m.impl("squared_relu_backward", TORCH_BOX(&backward));
}
STABLE_TORCH_LIBRARY_IMPL(squared_relu, CUDA, m) {
  m.impl("squared_relu", TORCH_BOX(&forward));
  m.impl("squared_relu_backward", TORCH_BOX(&backward));
}
