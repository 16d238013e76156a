#pragma once
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <tuple>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// xyz [batch, n, 3], centers [batch, m, 3], features [batch, channels, n], index [batch, m, count].
Tensor farthest_cpu(const Tensor& xyz, int64_t count);
Tensor ball_cpu(const Tensor& xyz, const Tensor& centers, double radius, int64_t count);
std::tuple<Tensor, Tensor> nearest_cpu(const Tensor& xyz, const Tensor& centers);
Tensor group_cpu(const Tensor& features, const Tensor& index);
Tensor group_backward_cpu(const Tensor& grad, const Tensor& index, int64_t n);

Tensor farthest_cuda(const Tensor& xyz, int64_t count);
Tensor ball_cuda(const Tensor& xyz, const Tensor& centers, double radius, int64_t count);
std::tuple<Tensor, Tensor> nearest_cuda(const Tensor& xyz, const Tensor& centers);
Tensor group_cuda(const Tensor& features, const Tensor& index);
Tensor group_backward_cuda(const Tensor& grad, const Tensor& index, int64_t n);

// An accessor, plain or packed, of a tensor that is read or written. static: two files give the
// name Accessor to two templates, and of functions with one name and the same arguments the linker
// keeps one.
template <template <typename, int> class Accessor, typename T, int N>
static Accessor<const T, N> read(const Tensor& x) {
  return {x.const_data_ptr<T>(), x.sizes().data(), x.strides().data()};
}
template <template <typename, int> class Accessor, typename T, int N>
static Accessor<T, N> write(const Tensor& x) {
  return {x.mutable_data_ptr<T>(), x.sizes().data(), x.strides().data()};
}
