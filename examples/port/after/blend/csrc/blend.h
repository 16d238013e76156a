#pragma once
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Half.h>

#include <type_traits>

using torch::stable::Tensor;

// y = alpha * a + beta * b where mask is true or NULL, else a. All are contiguous; y may be a.
void mix_cuda(const Tensor& y, const Tensor& a, const Tensor& b, const bool* mask, double alpha,
              double beta);

template <typename T>
C10_HOST_DEVICE inline T mix_one(T a, T b, double alpha, double beta) {
  // float16 computes in float32
  using F = std::conditional_t<std::is_same_v<T, torch::headeronly::Half>, float, T>;
  return static_cast<T>(F(alpha) * F(a) + F(beta) * F(b));
}
