#pragma once
#include <ATen/OpMathType.h>
#include <torch/extension.h>

#include <optional>
#include <vector>

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor blend(const at::Tensor& a, const at::Tensor& b, const OptionalTensor& mask,
                 double alpha);
at::Tensor sum_list(const std::vector<at::Tensor>& tensors);

// y = alpha * a + beta * b where mask is true or NULL, else a. All are contiguous; y may be a.
void mix_cuda(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const bool* mask,
              double alpha, double beta);

template <typename T>
C10_HOST_DEVICE inline T mix_one(T a, T b, double alpha, double beta) {
  using F = at::opmath_type<T>;  // float16 computes in float32
  return static_cast<T>(F(alpha) * F(a) + F(beta) * F(b));
}
