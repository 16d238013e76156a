// int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor zero, Tensor? bias) -> Tensor, and
// dequantize(Tensor packed, Tensor scale, Tensor zero) -> Tensor, on torch's ABI-stable headers:
// checks, allocation, launch. On a CPU: plain loops.
#include "int4_linear.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
namespace values = torch::stable::detail;

#ifdef WITH_CUDA
// torch declares it where USE_CUDA is defined.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace {

// From this many rows of x on, W is dequantized for torch's matmul.
constexpr int64_t kManyRows = 129;

// Python sees a RuntimeError with the text. (STD_TORCH_CHECK would put this file's path and line
// before it, and crashes where the C++ runtime is linked statically, as on some machines.)
void check(bool is_right, const std::string& text) {
  if (!is_right) throw std::runtime_error("int4_linear: " + text);
}

[[maybe_unused]] void raise(const char* error) { check(error == nullptr, error ? error : ""); }

std::string shape(const Tensor& x) {
  std::string text = "[";
  for (int64_t i = 0; i < x.dim(); ++i) text += (i ? ", " : "") + std::to_string(x.size(i));
  return text + "]";
}

// Contiguous, and at an address that 16-byte loads accept.
Tensor tidy(const Tensor& x) {
  const Tensor y = torch::stable::contiguous(x);
  return reinterpret_cast<uintptr_t>(y.const_data_ptr()) % 16 == 0 ? y : torch::stable::clone(y);
}

// A checked weight.
struct Weight {
  Tensor packed, scale, zero;
  int64_t n, k;
  Weight(const Tensor& packed_, const Tensor& scale_, const Tensor& zero_) {
    check(packed_.scalar_type() == ScalarType::Int && packed_.dim() == 4 && packed_.size(2) == 32 &&
              packed_.size(3) == 4,
          "packed has shape " + shape(packed_) + ", expected int32 [N/16, K/64, 32, 4]");
    n = packed_.size(0) * 16;
    k = packed_.size(1) * 64;
    check(n > 0 && k > 0 && n % 64 == 0 && k % 128 == 0,
          "the weight is " + std::to_string(n) + " x " + std::to_string(k) +
              ", expected multiples of 64 and of 128");
    check(n < int64_t(1) << 30 && k < int64_t(1) << 30, "N and K have to be below 2^30");
    const ScalarType dtype = scale_.scalar_type();
    check(dtype == ScalarType::Half || dtype == ScalarType::BFloat16,
          "scale has to be float16 or bfloat16");
    check(zero_.scalar_type() == ScalarType::Byte, "zero has to be uint8");
    for (const Tensor* x : {&scale_, &zero_}) {
      check(x->dim() == 2 && x->size(0) == k / 128 && x->size(1) == n,
            std::string(x == &scale_ ? "scale" : "zero") + " has shape " + shape(*x) +
                ", expected [K/128, N]: [" + std::to_string(k / 128) + ", " + std::to_string(n) +
                "]");
      check(x->device() == packed_.device(), "packed, scale and zero are not on one device");
    }
    packed = tidy(packed_);
    scale = tidy(scale_);
    zero = tidy(zero_);
  }
  Int4Dtype dtype() const {
    return scale.scalar_type() == ScalarType::Half ? INT4_FLOAT16 : INT4_BFLOAT16;
  }
};

// Row `row` of W, in the order of the columns. docs/10_int4_linear.md has the layout.
template <typename T>
void dequantize_row(T* out, const Weight& w, int64_t row) {
  const auto* words = static_cast<const uint32_t*>(w.packed.const_data_ptr());
  const auto* scale = static_cast<const T*>(w.scale.const_data_ptr());
  const auto* zero = static_cast<const uint8_t*>(w.zero.const_data_ptr());
  for (int64_t column = 0; column < w.k; ++column) {
    const int64_t lane = row % 16 / 2 * 4 + column % 32 / 8,
                  step = column % 64 / 32 * 2 + column % 8 / 4;
    const int64_t place = column % 2 * 4 + column % 4 / 2 * 2 + row % 2;
    const uint32_t word = words[((row / 16 * (w.k / 64) + column / 64) * 32 + lane) * 4 + step];
    const int code = (word >> 3 | word << 29) >> 4 * place & 15;
    const int64_t affine = column / 128 * w.n + row;
    out[column] = T(static_cast<float>(code - zero[affine]) * static_cast<float>(scale[affine]));
  }
}

template <typename T>
void linear_loop(Tensor& y, const Tensor& x, const Weight& w, const std::optional<Tensor>& bias,
                 int64_t batch) {
  auto* out = static_cast<T*>(y.mutable_data_ptr());
  const auto* in = static_cast<const T*>(x.const_data_ptr());
  const auto* add = bias ? static_cast<const T*>(bias->const_data_ptr()) : nullptr;
  std::vector<T> row(w.k);
  for (int64_t n = 0; n < w.n; ++n) {
    dequantize_row(row.data(), w, n);
    for (int64_t m = 0; m < batch; ++m) {
      float sum = add ? static_cast<float>(add[n]) : 0;
      for (int64_t k = 0; k < w.k; ++k) {
        sum += static_cast<float>(in[m * w.k + k]) * static_cast<float>(row[k]);
      }
      out[m * w.n + n] = T(sum);
    }
  }
}

#ifdef WITH_CUDA
CUstream_st* current_stream(const Tensor& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return static_cast<CUstream_st*>(stream);
}
#endif

Tensor dequantize_checked(const Weight& w) {
  Tensor weight = torch::stable::new_empty(w.scale, std::array<int64_t, 2>{w.n, w.k});
#ifdef WITH_CUDA
  if (w.scale.is_cuda()) {
    const torch::stable::accelerator::DeviceGuard guard(w.scale.get_device_index());
    raise(launch_dequantize(weight.mutable_data_ptr(), w.packed.const_data_ptr(),
                            w.scale.const_data_ptr(), w.zero.const_data_ptr(), w.n, w.k, w.dtype(),
                            current_stream(w.scale)));
    return weight;
  }
#endif
  for (int64_t n = 0; n < w.n; ++n) {
    char* row = static_cast<char*>(weight.mutable_data_ptr()) + n * w.k * 2;
    if (w.dtype() == INT4_FLOAT16) {
      dequantize_row(reinterpret_cast<torch::headeronly::Half*>(row), w, n);
    } else {
      dequantize_row(reinterpret_cast<torch::headeronly::BFloat16*>(row), w, n);
    }
  }
  return weight;
}

Tensor dequantize(const Tensor& packed, const Tensor& scale, const Tensor& zero) {
  return dequantize_checked(Weight(packed, scale, zero));
}

Tensor linear(const Tensor& x_, const Tensor& packed, const Tensor& scale, const Tensor& zero,
              std::optional<Tensor> bias) {
  const Weight w(packed, scale, zero);
  check(x_.dim() > 0 && x_.size(x_.dim() - 1) == w.k,
        "x has shape " + shape(x_) + ", expected a last dimension of K = " + std::to_string(w.k));
  check(x_.scalar_type() == w.scale.scalar_type(), "x and scale differ in dtype");
  check(x_.device() == w.scale.device(), "x and the weight are not on one device");
  const Tensor x = tidy(x_);
  if (bias) {
    check(bias->dim() == 1 && bias->size(0) == w.n,
          "bias has shape " + shape(*bias) + ", expected [N]: [" + std::to_string(w.n) + "]");
    check(bias->scalar_type() == x.scalar_type() && bias->device() == x.device(),
          "bias and x differ in dtype or device");
    bias = tidy(*bias);
  }
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i + 1 < x.dim(); ++i) sizes.push_back(x.size(i));
  sizes.push_back(w.n);
  Tensor y = torch::stable::new_empty(x, sizes);
  const int64_t batch = x.numel() / w.k;
  if (batch == 0) return y;
#ifdef WITH_CUDA
  if (x.is_cuda()) {
    // A kernel runs on the current device: the guard makes it the tensors' one.
    const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    if (batch < kManyRows) {
      raise(launch_int4_linear(y.mutable_data_ptr(), x.const_data_ptr(), w.packed.const_data_ptr(),
                               w.scale.const_data_ptr(), w.zero.const_data_ptr(),
                               bias ? bias->const_data_ptr() : nullptr, batch, w.n, w.k, w.dtype(),
                               current_stream(x)));
      return y;
    }
    // F.linear into y. (Autocast leaves operators with out= alone.)
    const Tensor rows = torch::stable::view(x, std::array<int64_t, 2>{batch, w.k});
    const Tensor out = torch::stable::view(y, std::array<int64_t, 2>{batch, w.n});
    std::array<StableIValue, 4> stack = {values::from(rows), values::from(dequantize_checked(w)),
                                         values::from(bias), values::from(out)};
    TORCH_ERROR_CODE_CHECK(
        torch_call_dispatcher("aten::linear", "out", stack.data(), TORCH_ABI_VERSION));
    values::to<Tensor>(stack[0]);  // takes the reference that the call returned
    return y;
  }
#endif
  if (w.dtype() == INT4_FLOAT16) {
    linear_loop<torch::headeronly::Half>(y, x, w, bias, batch);
  } else {
    linear_loop<torch::headeronly::BFloat16>(y, x, w, bias, batch);
  }
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
