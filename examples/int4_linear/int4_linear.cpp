// The operators int4_linear, linear_before_norm, linear_after_norm and dequantize on torch's
// ABI-stable headers: checks, allocation, launch. On a CPU: plain loops, and torch's matmul.
#include "int4_linear.h"

#include <cmath>
#include <optional>
#include <tuple>
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

// The parts of an RMSNorm, as int4_linear.h has them, for a CPU.
void add_residual_on_cpu(const Int4Call& call) {
  const auto* residual = static_cast<const BFloat16*>(call.residual);
  const auto* weight = static_cast<const BFloat16*>(call.norm_weight);
  auto *y = static_cast<BFloat16*>(call.y), *weighted = static_cast<BFloat16*>(call.weighted);
  for (int64_t i = 0; i < static_cast<int64_t>(call.batch) * call.n; ++i) {
    const BFloat16 sum = static_cast<float>(y[i]) + static_cast<float>(residual[i]);
    const float wide = sum;
    y[i] = sum;
    weighted[i] = wide * static_cast<float>(weight[i % call.n]);
    if (i % kStrip == 0) call.next_squares[i / kStrip] = 0;
    call.next_squares[i / kStrip] += wide * wide;
  }
}
void scale_rows_on_cpu(const Int4Call& call) {
  const auto* x = static_cast<const BFloat16*>(call.x);
  auto* y = static_cast<BFloat16*>(call.y);
  const int strips = call.k / kStrip;
  for (int64_t row = 0; row < call.batch; ++row) {
    float sum = 0;
    for (int64_t i = row * strips; i < (row + 1) * strips; ++i) sum += call.squares[i];
    const float scale = 1 / std::sqrt(sum / static_cast<float>(call.k) + call.eps);
    for (int64_t i = row * call.k; i < (row + 1) * call.k; ++i)
      y[i] = static_cast<float>(x[i]) * scale;
  }
}

// Checks x, which is [..., K]. Returns its shape.
std::vector<int64_t> check_rows(const char* argument, const Tensor& x, const Int4Call& call,
                                const Tensor& scale) {
  self.expect_tensor(argument, x);
  std::vector<int64_t> shape = x.sizes().vec();
  if (shape.empty()) self.refuse(argument, " has no dimension, expected [..., K]");
  shape.back() = call.k;
  self.expect(argument, x, scale, scale.scalar_type(), shape);
  const int64_t batch = x.numel() / call.k;
  if (batch >= 1 << 30)
    self.refuse(argument, " has ", std::to_string(batch), " rows, expected less than 2^30");
  return shape;
}

// x as rows of `width` columns.
Tensor to_rows(const Tensor& x, int64_t width) {
  return contiguous_16(torch::stable::reshape(x, {x.numel() / width, width}));
}

// Checks a bias and puts it into a call, and x, which is [rows, K], and the result. `shape`: of x
// as the caller has it.
Tensor prepare(Int4Call& call, const Tensor& x, std::vector<int64_t> shape,
               std::optional<Tensor>& bias, bool gated) {
  if (bias) {
    self.expect("bias", *bias, x, x.scalar_type(), {call.n});
    bias = contiguous_16(*bias);
  }
  shape.back() = gated ? call.n / 2 : call.n;
  Tensor result = torch::stable::new_empty(x, shape);
  call.y = result.mutable_data_ptr();
  call.x = x.const_data_ptr();
  call.bias = bias ? bias->const_data_ptr() : nullptr;
  call.batch = static_cast<int>(x.size(0));
  call.is_gated = gated;
  return result;
}

// Computes a call, whose y is the memory of `result`.
void multiply(const Int4Call& call, const Tensor& result, const Tensor& x, const Tensor& packed,
              const Tensor& scale, const Tensor& zero, const std::optional<Tensor>& bias) {
  if (call.batch == 0) return;
#ifdef USE_CUDA
  if (result.is_cuda()) {
    bool is_done = false;
    self.on_gpu(result,
                [&](CUstream_st* stream) { return launch_int4_linear(call, &is_done, stream); });
    if (is_done) return;
  }
#endif
  const int64_t width = call.is_gated ? call.n / 2 : call.n;
  linear::by_torch(torch::stable::view(result, {call.batch, width}), x,
                   dequantize(packed, scale, zero), bias, call.is_gated ? 1 : 0);
}

Tensor int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor zero, std::optional<Tensor> bias,
                   bool gated) {
  Int4Call call = check_weight(packed, scale, zero);
  const std::vector<int64_t> shape = check_rows("x", x, call, scale);
  x = to_rows(x, call.k);
  const Tensor result = prepare(call, x, shape, bias, gated);
  multiply(call, result, x, packed, scale, zero, bias);
  return result;
}

void check_bfloat16(const Int4Call& call) {
  if (call.is_float16)
    self.refuse(
        "scale is Half, expected BFloat16: float16 may be too small for what is not normalized");
}

std::tuple<Tensor, Tensor, Tensor> linear_before_norm(Tensor x, Tensor packed, Tensor scale,
                                                      Tensor zero, std::optional<Tensor> bias,
                                                      Tensor residual, Tensor norm_weight) {
  Int4Call call = check_weight(packed, scale, zero);
  check_bfloat16(call);
  std::vector<int64_t> shape = check_rows("x", x, call, scale);
  x = to_rows(x, call.k);
  const Tensor sum = prepare(call, x, shape, bias, false);
  self.expect("residual", residual, x, x.scalar_type(), sum.sizes());
  self.expect("norm_weight", norm_weight, x, x.scalar_type(), {call.n});
  residual = contiguous_16(residual);
  norm_weight = contiguous_16(norm_weight);
  Tensor weighted = torch::stable::empty_like(sum);
  shape.back() = call.n / kStrip;
  Tensor squares = torch::stable::new_empty(x, shape, ScalarType::Float);
  Int4Call with_norm = call;
  with_norm.residual = residual.const_data_ptr();
  with_norm.norm_weight = norm_weight.const_data_ptr();
  with_norm.weighted = weighted.mutable_data_ptr();
  with_norm.next_squares = squares.mutable_data_ptr<float>();
  if (sum.is_cuda() && call.batch <= kFewRows) {
    multiply(with_norm, sum, x, packed, scale, zero, bias);
    return {sum, weighted, squares};
  }
  multiply(call, sum, x, packed, scale, zero, bias);
#ifdef USE_CUDA
  if (sum.is_cuda()) {
    self.on_gpu(sum, [&](CUstream_st* stream) { return launch_add_residual(with_norm, stream); });
    return {sum, weighted, squares};
  }
#endif
  add_residual_on_cpu(with_norm);
  return {sum, weighted, squares};
}

Tensor linear_after_norm(Tensor weighted, Tensor squares, double eps, Tensor packed, Tensor scale,
                         Tensor zero, std::optional<Tensor> bias, bool gated) {
  Int4Call call = check_weight(packed, scale, zero);
  check_bfloat16(call);
  const std::vector<int64_t> shape = check_rows("weighted", weighted, call, scale);
  std::vector<int64_t> strips = shape;
  strips.back() = call.k / kStrip;
  self.expect("squares", squares, weighted, ScalarType::Float, strips);
  Tensor x = to_rows(weighted, call.k);
  squares = contiguous_16(squares);
  const Tensor result = prepare(call, x, shape, bias, gated);
  Int4Call with_norm = call;
  with_norm.squares = squares.const_data_ptr<float>();
  with_norm.eps = static_cast<float>(eps);
  if (result.is_cuda() && call.batch <= kFewRows) {
    multiply(with_norm, result, x, packed, scale, zero, bias);
    return result;
  }
  const Tensor normed = torch::stable::empty_like(x);
  with_norm.y = normed.mutable_data_ptr();
  call.x = normed.const_data_ptr();
#ifdef USE_CUDA
  if (result.is_cuda()) {
    self.on_gpu(result, [&](CUstream_st* stream) { return launch_scale_rows(with_norm, stream); });
    multiply(call, result, normed, packed, scale, zero, bias);
    return result;
  }
#endif
  scale_rows_on_cpu(with_norm);
  multiply(call, result, normed, packed, scale, zero, bias);
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY(int4_linear, m) {
  m.def(
      "int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor zero, Tensor? bias, "
      "bool gated=False) -> Tensor");
  m.def(
      "linear_before_norm(Tensor x, Tensor packed, Tensor scale, Tensor zero, Tensor? bias, "
      "Tensor residual, Tensor norm_weight) -> (Tensor, Tensor, Tensor)");
  m.def(
      "linear_after_norm(Tensor weighted, Tensor squares, float eps, Tensor packed, Tensor scale, "
      "Tensor zero, Tensor? bias, bool gated=False) -> Tensor");
  m.def("dequantize(Tensor packed, Tensor scale, Tensor zero) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(int4_linear, CPU, m) {
  m.impl("int4_linear", TORCH_BOX(&int4_linear));
  m.impl("linear_before_norm", TORCH_BOX(&linear_before_norm));
  m.impl("linear_after_norm", TORCH_BOX(&linear_after_norm));
  m.impl("dequantize", TORCH_BOX(&dequantize));
}

#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(int4_linear, CUDA, m) {
  m.impl("int4_linear", TORCH_BOX(&int4_linear));
  m.impl("linear_before_norm", TORCH_BOX(&linear_before_norm));
  m.impl("linear_after_norm", TORCH_BOX(&linear_after_norm));
  m.impl("dequantize", TORCH_BOX(&dequantize));
}
#endif
