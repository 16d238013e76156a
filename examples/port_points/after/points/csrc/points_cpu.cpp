// Dispatch_v2.h uses STD_TORCH_CHECK, which points.h includes before it.
#include "points.h"
//
#include <torch/headeronly/core/Dispatch_v2.h>
#include <torch/headeronly/core/TensorAccessor.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "search.h"

template <typename T, int N>
using Accessor = torch::headeronly::HeaderOnlyTensorAccessor<T, N>;

template <typename T>
static void farthest_of(const Tensor& xyz, const Tensor& index) {
  const auto points = read<Accessor, T, 3>(xyz);
  auto chosen = write<Accessor, int, 2>(index);
  for (int64_t b = 0; b < xyz.size(0); ++b) {
    std::vector<T> nearest(xyz.size(1), std::numeric_limits<T>::infinity());
    for (int64_t k = 1, last = 0; k < index.size(1); ++k) {
      int64_t best = 0;
      for (int64_t i = 0; i < xyz.size(1); ++i) {
        const T distance = squared_distance<T>(points[b][i], points[b][last]);
        nearest[i] = std::min(nearest[i], distance);
        if (nearest[i] > nearest[best]) best = i;
      }
      chosen[b][k] = last = best;
    }
  }
}

// Calls f(batch, center) for each center, on several threads.
template <typename F>
static void for_each_center(const Tensor& centers, F f) {
  const int64_t m = centers.size(1);
  torch::stable::parallel_for(0, centers.size(0) * m, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / m, i % m);
  });
}

template <typename T>
static void ball_of(const Tensor& xyz, const Tensor& centers, T radius, const Tensor& index) {
  const auto points = read<Accessor, T, 3>(xyz), center = read<Accessor, T, 3>(centers);
  auto found = write<Accessor, int, 3>(index);
  for_each_center(centers, [&](int64_t b, int64_t m) {
    find_in_ball<T>(points[b], center[b][m], radius, found[b][m]);
  });
}

template <typename T>
static void nearest_of(const Tensor& xyz, const Tensor& centers, const Tensor& distance,
                       const Tensor& index) {
  const auto points = read<Accessor, T, 3>(xyz), center = read<Accessor, T, 3>(centers);
  auto distances = write<Accessor, T, 3>(distance);
  auto found = write<Accessor, int, 3>(index);
  for_each_center(centers, [&](int64_t b, int64_t m) {
    find_nearest<T>(points[b], center[b][m], distances[b][m], found[b][m]);
  });
}

// Calls f(batch, channel, i, j, point) for each element of index and each channel. One thread has
// all that belongs to a channel, so it may add without atomics.
template <typename F>
static void for_each_grouped(const Tensor& index, int64_t channels, int64_t n, F f) {
  const auto points = read<Accessor, int, 3>(index);
  const int64_t m = index.size(1), count = index.size(2);
  // Before the loop: through parallel_for an exception loses its type and its message.
  const int* all = index.const_data_ptr<int>();
  const bool is_right =
      std::all_of(all, all + index.numel(), [&](int point) { return point >= 0 && point < n; });
  if (!is_right) throw std::out_of_range("index out of range");  // an IndexError in Python
  torch::stable::parallel_for(0, index.size(0) * channels, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / channels;
      for (int64_t i = 0; i < m * count; ++i) {
        const int64_t point = points[b][i / count][i % count];
        f(b, row % channels, i / count, i % count, point);
      }
    }
  });
}

template <typename T>
static void group_of(const Tensor& features, const Tensor& index, const Tensor& y) {
  const auto from = read<Accessor, T, 3>(features);
  auto to = write<Accessor, T, 4>(y);
  for_each_grouped(index, y.size(1), features.size(2),
                   [&](int64_t b, int64_t c, int64_t i, int64_t j, int64_t point) {
                     to[b][c][i][j] = from[b][c][point];
                   });
}

template <typename T>
static void group_backward_of(const Tensor& grad, const Tensor& index, const Tensor& sums) {
  const auto from = read<Accessor, T, 4>(grad);
  auto to = write<Accessor, T, 3>(sums);
  for_each_grouped(index, grad.size(1), sums.size(2),
                   [&](int64_t b, int64_t c, int64_t i, int64_t j, int64_t point) {
                     to[b][c][point] += from[b][c][i][j];
                   });
}

Tensor farthest_cpu(const Tensor& xyz, int64_t count) {
  const Tensor index = torch::stable::new_zeros(xyz, {xyz.size(0), count}, ScalarType::Int);
  THO_DISPATCH_V2(xyz.scalar_type(), "farthest",
                  AT_WRAP([&] { farthest_of<scalar_t>(xyz, index); }),
                  AT_EXPAND(AT_FLOATING_TYPES));
  return index;
}

Tensor ball_cpu(const Tensor& xyz, const Tensor& centers, double radius, int64_t count) {
  const Tensor index =
      torch::stable::new_empty(xyz, {centers.size(0), centers.size(1), count}, ScalarType::Int);
  THO_DISPATCH_V2(xyz.scalar_type(), "ball",
                  AT_WRAP([&] { ball_of<scalar_t>(xyz, centers, radius, index); }),
                  AT_EXPAND(AT_FLOATING_TYPES));
  return index;
}

std::tuple<Tensor, Tensor> nearest_cpu(const Tensor& xyz, const Tensor& centers) {
  const Tensor distance = torch::stable::empty_like(centers);
  const Tensor index = torch::stable::new_empty(xyz, distance.sizes(), ScalarType::Int);
  THO_DISPATCH_V2(xyz.scalar_type(), "nearest",
                  AT_WRAP([&] { nearest_of<scalar_t>(xyz, centers, distance, index); }),
                  AT_EXPAND(AT_FLOATING_TYPES));
  return {distance, index};
}

Tensor group_cpu(const Tensor& features, const Tensor& index) {
  const Tensor y = torch::stable::new_empty(
      features, {features.size(0), features.size(1), index.size(1), index.size(2)});
  THO_DISPATCH_V2(features.scalar_type(), "group",
                  AT_WRAP([&] { group_of<scalar_t>(features, index, y); }),
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half);
  return y;
}

Tensor group_backward_cpu(const Tensor& grad, const Tensor& index, int64_t n) {
  const Tensor sums = torch::stable::new_zeros(grad, {grad.size(0), grad.size(1), n});
  THO_DISPATCH_V2(grad.scalar_type(), "group_backward",
                  AT_WRAP([&] { group_backward_of<scalar_t>(grad, index, sums); }),
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half);
  return sums;
}
