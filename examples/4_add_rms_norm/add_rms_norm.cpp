// add_rms_norm(Tensor a, Tensor b, Tensor weight, float eps) -> (Tensor y, Tensor s, Tensor rstd)
// and its gradient, on torch's ABI-stable headers: checks, allocation, launch.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "add_rms_norm.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

#ifdef WITH_CUDA
// torch declares it where USE_CUDA is defined.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace {

// Python sees a RuntimeError with the text. (STD_TORCH_CHECK would put this file's path and line
// before it, and crashes where the C++ runtime is linked statically, as on some machines.)
[[noreturn]] void refuse(const std::string& text) {
  throw std::runtime_error("add_rms_norm: " + text);
}

void refuse_if(const char* error) {
  if (error != nullptr) refuse(error);
}

std::string shape(const Tensor& x) {
  std::string text = "[";
  for (int64_t i = 0; i < x.dim(); ++i) text += (i ? ", " : "") + std::to_string(x.size(i));
  return text + "]";
}

RmsDtype dtype_of(const Tensor& x) {
  const ScalarType type = x.scalar_type();
  if (type == ScalarType::Float) return RMS_FLOAT32;
  if (type == ScalarType::Double) return RMS_FLOAT64;
  if (type == ScalarType::Half) return RMS_FLOAT16;
  if (type == ScalarType::BFloat16) return RMS_BFLOAT16;
  refuse("expected float32, float64, float16 or bfloat16");
}

// rstd is float32, or float64 for float64.
ScalarType statistics_type(const Tensor& a) {
  return a.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

void check(const std::string& name, const Tensor& x, ScalarType type, const Tensor& a) {
  if (x.scalar_type() != type) refuse(name + " and a differ in dtype");
  if (x.device() != a.device()) refuse(name + " and a differ in device");
}

void check_same(const char* name, const Tensor& x, const Tensor& a) {
  check(name, x, a.scalar_type(), a);
  if (!x.sizes().equals(a.sizes())) {
    refuse(std::string(name) + " has shape " + shape(x) + ", expected a's: " + shape(a));
  }
}

void check_weight(const Tensor& weight, const Tensor& a) {
  ScalarType type = a.scalar_type();
  const bool is_half = type == ScalarType::Half || type == ScalarType::BFloat16;
  if (is_half && weight.scalar_type() == ScalarType::Float) type = ScalarType::Float;
  check("weight", weight, type, a);
  if (a.dim() == 0) refuse("a has no dimension, expected at least one");
  const int64_t width = a.size(a.dim() - 1);
  if (width == 0) refuse("a has shape " + shape(a) + ": its last dimension is empty");
  if (weight.dim() != 1 || weight.size(0) != width) {
    refuse("weight has shape " + shape(weight) + ", expected a's last dimension: [" +
           std::to_string(width) + "]");
  }
}

#ifdef WITH_CUDA
CUstream_st* current_stream(const Tensor& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return static_cast<CUstream_st*>(stream);
}
#endif

// rows x width; any strides have become row-major.
struct Rows {
  Tensor tensor;
  int64_t width, rows;
  explicit Rows(const Tensor& x)
      : tensor(torch::stable::contiguous(x)), width(x.size(x.dim() - 1)), rows(x.numel() / width) {}
};

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& a, const Tensor& b, const Tensor& weight,
                                           double eps) {
  const RmsDtype dtype = dtype_of(a);
  check_same("b", b, a);
  check_weight(weight, a);
  const Rows x(a), z(b);
  const Tensor w = torch::stable::contiguous(weight);
  Tensor y = torch::stable::empty_like(x.tensor), s = torch::stable::empty_like(x.tensor);
  const std::vector<int64_t> leading(a.sizes().begin(), a.sizes().end() - 1);
  Tensor rstd = torch::stable::new_empty(a, leading, statistics_type(a));
  const RmsForward data = {y.mutable_data_ptr(),
                           s.mutable_data_ptr(),
                           rstd.mutable_data_ptr(),
                           x.tensor.const_data_ptr(),
                           z.tensor.const_data_ptr(),
                           w.const_data_ptr(),
                           eps,
                           x.rows,
                           x.width,
                           dtype,
                           dtype_of(w)};
#ifdef WITH_CUDA
  if (a.is_cuda()) {
    // A kernel runs on the current device: the guard makes it the tensors' one.
    const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
    refuse_if(launch_add_rms_norm(&data, current_stream(a)));
    return {y, s, rstd};
  }
#endif
  refuse_if(add_rms_norm_cpu(&data));
  return {y, s, rstd};
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, std::optional<Tensor> ds, const Tensor& s,
                                    const Tensor& weight, const Tensor& rstd) {
  const RmsDtype dtype = dtype_of(s);
  check_same("dy", dy, s);
  check_weight(weight, s);
  const Rows x(s), grad(dy);
  if (rstd.scalar_type() != statistics_type(s) || rstd.numel() != x.rows ||
      rstd.device() != s.device()) {
    refuse("rstd is not what add_rms_norm returned with s");
  }
  const Tensor w = torch::stable::contiguous(weight), r = torch::stable::contiguous(rstd);
  if (ds) {
    check_same("ds", *ds, s);
    ds = torch::stable::contiguous(*ds);
  }
  Tensor dx = torch::stable::empty_like(x.tensor), dweight = torch::stable::empty_like(w);
  RmsBackward data = {dx.mutable_data_ptr(),
                      dweight.mutable_data_ptr(),
                      nullptr,
                      grad.tensor.const_data_ptr(),
                      ds ? ds->const_data_ptr() : nullptr,
                      x.tensor.const_data_ptr(),
                      w.const_data_ptr(),
                      r.const_data_ptr(),
                      x.rows,
                      x.width,
                      dtype,
                      dtype_of(w)};
#ifdef WITH_CUDA
  if (s.is_cuda()) {
    const torch::stable::accelerator::DeviceGuard guard(s.get_device_index());
    // Freed when this function returns, before the kernels have run: torch gives the memory only to
    // later work on this stream.
    const std::vector<int64_t> sizes = {rms_scratch_size(x.rows, x.width, dtype)};
    Tensor scratch = torch::stable::new_empty(r, sizes);
    data.scratch = scratch.mutable_data_ptr();
    refuse_if(launch_add_rms_norm_backward(&data, current_stream(s)));
    return {dx, dweight};
  }
#endif
  refuse_if(add_rms_norm_backward_cpu(&data));
  return {dx, dweight};
}

}  // namespace

STABLE_TORCH_LIBRARY(add_rms_norm, m) {
  m.def(
      "add_rms_norm(Tensor a, Tensor b, Tensor weight, float eps) -> (Tensor y, Tensor s, Tensor "
      "rstd)");
  m.def(
      "add_rms_norm_backward(Tensor dy, Tensor? ds, Tensor s, Tensor weight, Tensor rstd) -> "
      "(Tensor dx, Tensor dweight)");
}

STABLE_TORCH_LIBRARY_IMPL(add_rms_norm, CPU, m) {
  m.impl("add_rms_norm", TORCH_BOX(&forward));
  m.impl("add_rms_norm_backward", TORCH_BOX(&backward));
}

#ifdef WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(add_rms_norm, CUDA, m) {
  m.impl("add_rms_norm", TORCH_BOX(&forward));
  m.impl("add_rms_norm_backward", TORCH_BOX(&backward));
}
#endif
