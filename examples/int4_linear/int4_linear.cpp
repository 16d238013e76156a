// The operators int4_linear and dequantize on torch's ABI-stable headers: checks, allocation,
// launch. On a CPU: a plain loop for dequantize, and torch's matmul.
#include "int4_linear.h"

#include <optional>
#include <vector>

#include "common/linear.h"
#include "common/operator.h"

using namespace torch::headeronly;  // ScalarType, Half, BFloat16

namespace {

constexpr Operator self = {"int4_linear"};

// Checks a weight and makes it contiguous. Returns its part of a call: all but y, x, bias, batch.
Int4Call check_weight(Tensor& packed, Tensor& scale, Tensor& zero) {
  self.expect_tensor("packed", packed);
  self.expect_tensor("scale", scale);
  std::vector<int64_t> shape = packed.sizes().vec();
  shape.resize(2);
  const int64_t n = shape[0] * 64, k = shape[1] * 64, groups = (k + 127) / 128;
  self.expect("packed", packed, packed, ScalarType::Int, {shape[0], shape[1], 4, 32, 4});
  if (n == 0 || k == 0 || n >= 1 << 26 || k >= 1 << 26) {
    self.refuse("the weight is ", text({n, k}), ", expected sizes above 0 and below 2^26");
  }
  const ScalarType dtype = scale.scalar_type();
  if (dtype != ScalarType::Half && dtype != ScalarType::BFloat16) {
    self.refuse("scale is ", toString(dtype), ", expected Half or BFloat16");
  }
  self.expect("scale", scale, packed, dtype, {groups, n});
  self.expect("zero", zero, packed, ScalarType::Byte, {groups, n});
  packed = contiguous_16(packed);
  scale = contiguous_16(scale);
  zero = contiguous_16(zero);
  Int4Call call = {};
  call.packed = packed.const_data_ptr();
  call.scale = scale.const_data_ptr();
  call.zero = zero.const_data_ptr();
  call.n = static_cast<int>(n);
  call.k = static_cast<int>(k);
  call.is_float16 = dtype == ScalarType::Half;
  return call;
}

// W, in the order of its columns. docs/16_int4_linear.md has the layout of the codes.
template <typename T>
void dequantize_on_cpu(const Int4Call& call) {
  const auto* words = static_cast<const uint32_t*>(call.packed);
  const auto* scale = static_cast<const T*>(call.scale);
  const auto* zero = static_cast<const uint8_t*>(call.zero);
  auto* y = static_cast<T*>(call.y);
  for (int64_t i = 0; i < static_cast<int64_t>(call.n) * call.k; ++i) {
    const int64_t row = i / call.k, column = i % call.k;
    const int64_t tile = (row / 64 * (call.k / 64) + column / 64) * 4 + row % 64 / 16;
    const int64_t lane = row % 16 / 2 * 4 + column % 8 / 2;
    const int64_t step = column % 64 / 16;
    const int64_t place = column % 2 * 4 + column % 16 / 8 * 2 + row % 2;
    const uint32_t word = words[(tile * 32 + lane) * 4 + step];
    const int code = (word >> 3 | word << 29) >> 4 * place & 15;
    const int64_t affine = column / 128 * call.n + row;
    y[i] = T(static_cast<float>(code - zero[affine]) * static_cast<float>(scale[affine]));
  }
}

Tensor dequantize(Tensor packed, Tensor scale, Tensor zero) {
  Int4Call call = check_weight(packed, scale, zero);
  Tensor y = torch::stable::new_empty(scale, {call.n, call.k});
  call.y = y.mutable_data_ptr();
#ifdef USE_CUDA
  if (y.is_cuda()) {
    self.on_gpu(y, [&](CUstream_st* stream) { return launch_dequantize(call, stream); });
    return y;
  }
#endif
  call.is_float16 ? dequantize_on_cpu<Half>(call) : dequantize_on_cpu<BFloat16>(call);
  return y;
}

Tensor int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor zero, std::optional<Tensor> bias,
                   bool gated) {
  Int4Call call = check_weight(packed, scale, zero);
  self.expect_tensor("x", x);
  std::vector<int64_t> shape = x.sizes().vec();
  if (shape.empty()) self.refuse("x has no dimension, expected [..., K]");
  shape.back() = call.k;
  self.expect("x", x, packed, scale.scalar_type(), shape);
  const int64_t batch = x.numel() / call.k;
  if (batch >= 1 << 30)
    self.refuse("x has ", std::to_string(batch), " rows, expected less than 2^30");
  x = contiguous_16(torch::stable::reshape(x, {batch, call.k}));
  if (bias) {
    self.expect("bias", *bias, packed, scale.scalar_type(), {call.n});
    bias = contiguous_16(*bias);
  }
  const int64_t width = gated ? call.n / 2 : call.n;
  shape.back() = width;
  Tensor result = torch::stable::new_empty(x, shape);
  if (batch == 0) return result;
  call.y = result.mutable_data_ptr();
  call.x = x.const_data_ptr();
  call.bias = bias ? bias->const_data_ptr() : nullptr;
  call.batch = static_cast<int>(batch);
  call.is_gated = gated;
#ifdef USE_CUDA
  if (result.is_cuda()) {
    bool is_done = false;
    self.on_gpu(result,
                [&](CUstream_st* stream) { return launch_int4_linear(call, &is_done, stream); });
    if (is_done) return result;
  }
#endif
  linear::by_torch(torch::stable::view(result, {batch, width}), x, dequantize(packed, scale, zero),
                   bias, gated ? 1 : 0);
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY(int4_linear, m) {
  m.def(
      "int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor zero, Tensor? bias, "
      "bool gated=False) -> Tensor");
  m.def("dequantize(Tensor packed, Tensor scale, Tensor zero) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(int4_linear, CPU, m) {
  m.impl("int4_linear", TORCH_BOX(&int4_linear));
  m.impl("dequantize", TORCH_BOX(&dequantize));
}

#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(int4_linear, CUDA, m) {
  m.impl("int4_linear", TORCH_BOX(&int4_linear));
  m.impl("dequantize", TORCH_BOX(&dequantize));
}
#endif
