// int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor zero, Tensor? bias) -> Tensor, and
// dequantize(Tensor packed, Tensor scale, Tensor zero) -> Tensor, on torch's ABI-stable headers:
// checks, allocation, launch. On a CPU: a plain loop for dequantize, and torch's matmul.
#include "int4_linear.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

using namespace torch::headeronly;  // ScalarType, Half, BFloat16
using torch::stable::Tensor;
namespace values = torch::stable::detail;

#ifdef WITH_CUDA
// torch declares it where USE_CUDA is defined.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace {

// From this many rows of x on, a GPU dequantizes W for torch's matmul. A CPU always does.
constexpr int64_t kManyRows = 129;

// Python sees a RuntimeError with the text. (STD_TORCH_CHECK would put this file's path and line
// before it, and crashes where the C++ runtime is linked statically, as on some machines.)
[[noreturn]] void refuse(const std::string& text) {
  throw std::runtime_error("int4_linear: " + text);
}

std::string text(IntHeaderOnlyArrayRef shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

// torch lets Python's None pass for a tensor.
void expect_tensor(const std::string& name, const Tensor& x) {
  if (!x.defined()) refuse(name + " is None, expected a tensor");
}

void check(const std::string& name, const Tensor& x, ScalarType dtype, const Tensor& packed,
           const std::vector<int64_t>& shape) {
  expect_tensor(name, x);
  if (x.device() != packed.device()) refuse(name + " is on another device than packed");
  if (x.scalar_type() != dtype) {
    refuse(name + " is " + toString(x.scalar_type()) + ", expected " + toString(dtype));
  }
  if (!x.sizes().equals(shape)) {
    refuse(name + " has shape " + text(x.sizes()) + ", expected " + text(shape));
  }
}

// Contiguous, and at an address that 16-byte loads accept.
Tensor tidy(const Tensor& x) {
  const Tensor y = torch::stable::contiguous(x);
  return reinterpret_cast<uintptr_t>(y.const_data_ptr()) % 16 == 0 ? y : torch::stable::clone(y);
}

// Checks a weight and makes it contiguous. Returns its part of a call: all but y, x, bias, batch.
Int4Call check_weight(Tensor& packed, Tensor& scale, Tensor& zero) {
  expect_tensor("packed", packed);
  expect_tensor("scale", scale);
  std::vector<int64_t> shape = packed.sizes().vec();
  shape.resize(4);
  const int64_t n = shape[0] * 16, k = shape[1] * 64;
  check("packed", packed, ScalarType::Int, packed, {shape[0], shape[1], 32, 4});
  const bool is_small = n > 0 && k > 0 && n < 1 << 30 && k < 1 << 30;
  if (!is_small || n % 64 != 0 || k % 128 != 0) {
    refuse("the weight is " + text({n, k}) + ", expected multiples of 64 and of 128, below 2^30");
  }
  const ScalarType dtype = scale.scalar_type();
  if (dtype != ScalarType::Half && dtype != ScalarType::BFloat16) {
    refuse(std::string("scale is ") + toString(dtype) + ", expected Half or BFloat16");
  }
  check("scale", scale, dtype, packed, {k / 128, n});
  check("zero", zero, ScalarType::Byte, packed, {k / 128, n});
  packed = tidy(packed);
  scale = tidy(scale);
  zero = tidy(zero);
  return {packed.const_data_ptr(), scale.const_data_ptr(), zero.const_data_ptr(),
          static_cast<int>(n),     static_cast<int>(k),    dtype == ScalarType::Half};
}

// W, in the order of its columns. docs/12_int4_linear.md has the layout of the codes.
template <typename T>
void dequantize_on_cpu(const Int4Call& call) {
  const auto* words = static_cast<const uint32_t*>(call.packed);
  const auto* scale = static_cast<const T*>(call.scale);
  const auto* zero = static_cast<const uint8_t*>(call.zero);
  auto* y = static_cast<T*>(call.y);
  for (int64_t i = 0; i < static_cast<int64_t>(call.n) * call.k; ++i) {
    const int64_t row = i / call.k, column = i % call.k;
    const int64_t tile = row / 16 * (call.k / 64) + column / 64;
    const int64_t lane = row % 16 / 2 * 4 + column % 32 / 8;
    const int64_t step = column % 64 / 32 * 2 + column % 8 / 4;
    const int64_t place = column % 2 * 4 + column % 4 / 2 * 2 + row % 2;
    const uint32_t word = words[(tile * 32 + lane) * 4 + step];
    const int code = (word >> 3 | word << 29) >> 4 * place & 15;
    const int64_t affine = column / 128 * call.n + row;
    y[i] = T(static_cast<float>(code - zero[affine]) * static_cast<float>(scale[affine]));
  }
}

void run(const Int4Call& call, const Tensor& y) {
#ifdef WITH_CUDA
  if (y.is_cuda()) {
    // A kernel runs on the current device, and in the order of the stream that it is given.
    const torch::stable::accelerator::DeviceGuard guard(y.get_device_index());
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(y.get_device_index(), &stream));
    const char* error = launch_int4_linear(call, static_cast<CUstream_st*>(stream));
    if (error) refuse(error);
    return;
  }
#endif
  call.is_float16 ? dequantize_on_cpu<Half>(call) : dequantize_on_cpu<BFloat16>(call);
}

Tensor dequantize(Tensor packed, Tensor scale, Tensor zero) {
  Int4Call call = check_weight(packed, scale, zero);
  Tensor y = torch::stable::new_empty(scale, {call.n, call.k});
  call.y = y.mutable_data_ptr();
  run(call, y);
  return y;
}

Tensor linear(Tensor x, Tensor packed, Tensor scale, Tensor zero, std::optional<Tensor> bias) {
  Int4Call call = check_weight(packed, scale, zero);
  expect_tensor("x", x);
  std::vector<int64_t> shape = x.sizes().vec();
  if (shape.empty()) refuse("x has no dimension, expected [..., K]");
  shape.back() = call.k;
  check("x", x, scale.scalar_type(), packed, shape);
  x = tidy(x);
  if (bias) {
    check("bias", *bias, scale.scalar_type(), packed, {call.n});
    bias = tidy(*bias);
  }
  shape.back() = call.n;
  Tensor y = torch::stable::new_empty(x, shape);
  const int64_t batch = x.numel() / call.k;
  if (batch == 0) return y;
  if (!y.is_cuda() || batch >= kManyRows) {
    // F.linear into y. (Autocast leaves operators with out= alone.)
    StableIValue stack[] = {values::from(torch::stable::view(x, {batch, call.k})),
                            values::from(dequantize(packed, scale, zero)), values::from(bias),
                            values::from(torch::stable::view(y, {batch, call.n}))};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "out", stack, TORCH_ABI_VERSION));
    values::to<Tensor>(stack[0]);  // takes the reference that the call returned
    return y;
  }
  call.y = y.mutable_data_ptr();
  call.x = x.const_data_ptr();
  call.bias = bias ? bias->const_data_ptr() : nullptr;
  call.batch = static_cast<int>(batch);
  run(call, y);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY(int4_linear, m) {
  m.def("int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor zero, Tensor? bias) -> Tensor");
  m.def("dequantize(Tensor packed, Tensor scale, Tensor zero) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(int4_linear, CPU, m) {
  m.impl("int4_linear", TORCH_BOX(&linear));
  m.impl("dequantize", TORCH_BOX(&dequantize));
}

#ifdef WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(int4_linear, CUDA, m) {
  m.impl("int4_linear", TORCH_BOX(&linear));
  m.impl("dequantize", TORCH_BOX(&dequantize));
}
#endif
