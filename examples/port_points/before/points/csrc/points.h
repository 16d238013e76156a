#pragma once
#include <torch/extension.h>

#include <tuple>

// xyz [batch, n, 3], centers [batch, m, 3], features [batch, channels, n], index [batch, m, count].
at::Tensor farthest_cpu(const at::Tensor& xyz, int64_t count);
at::Tensor ball_cpu(const at::Tensor& xyz, const at::Tensor& centers, double radius, int64_t count);
std::tuple<at::Tensor, at::Tensor> nearest_cpu(const at::Tensor& xyz, const at::Tensor& centers);
at::Tensor group_cpu(const at::Tensor& features, const at::Tensor& index);
at::Tensor group_backward_cpu(const at::Tensor& grad, const at::Tensor& index, int64_t n);

at::Tensor farthest_cuda(const at::Tensor& xyz, int64_t count);
at::Tensor ball_cuda(const at::Tensor& xyz, const at::Tensor& centers, double radius,
                     int64_t count);
std::tuple<at::Tensor, at::Tensor> nearest_cuda(const at::Tensor& xyz, const at::Tensor& centers);
at::Tensor group_cuda(const at::Tensor& features, const at::Tensor& index);
at::Tensor group_backward_cuda(const at::Tensor& grad, const at::Tensor& index, int64_t n);
