#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "points.h"
#include "search.h"

template <typename T>
static void farthest_of(const at::Tensor& xyz, const at::Tensor& index) {
  const auto points = xyz.accessor<T, 3>();
  auto chosen = index.accessor<int, 2>();
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
static void for_each_center(const at::Tensor& centers, F f) {
  const int64_t m = centers.size(1);
  at::parallel_for(0, centers.size(0) * m, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / m, i % m);
  });
}

template <typename T>
static void ball_of(const at::Tensor& xyz, const at::Tensor& centers, T radius,
                    const at::Tensor& index) {
  const auto points = xyz.accessor<T, 3>(), center = centers.accessor<T, 3>();
  auto found = index.accessor<int, 3>();
  for_each_center(centers, [&](int64_t b, int64_t m) {
    find_in_ball<T>(points[b], center[b][m], radius, found[b][m]);
  });
}

template <typename T>
static void nearest_of(const at::Tensor& xyz, const at::Tensor& centers, const at::Tensor& distance,
                       const at::Tensor& index) {
  const auto points = xyz.accessor<T, 3>(), center = centers.accessor<T, 3>();
  auto distances = distance.accessor<T, 3>();
  auto found = index.accessor<int, 3>();
  for_each_center(centers, [&](int64_t b, int64_t m) {
    find_nearest<T>(points[b], center[b][m], distances[b][m], found[b][m]);
  });
}

// Calls f(batch, channel, i, j, point) for each element of index and each channel. One thread has
// all that belongs to a channel, so it may add without atomics.
template <typename F>
static void for_each_grouped(const at::Tensor& index, int64_t channels, int64_t n, F f) {
  const auto points = index.accessor<int, 3>();
  const int64_t m = index.size(1), count = index.size(2);
  at::parallel_for(0, index.size(0) * channels, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / channels;
      for (int64_t i = 0; i < m * count; ++i) {
        const int64_t point = points[b][i / count][i % count];
        TORCH_CHECK_INDEX(point >= 0 && point < n, "index out of range");
        f(b, row % channels, i / count, i % count, point);
      }
    }
  });
}

template <typename T>
static void group_of(const at::Tensor& features, const at::Tensor& index, const at::Tensor& y) {
  const auto from = features.accessor<T, 3>();
  auto to = y.accessor<T, 4>();
  for_each_grouped(index, y.size(1), features.size(2),
                   [&](int64_t b, int64_t c, int64_t i, int64_t j, int64_t point) {
                     to[b][c][i][j] = from[b][c][point];
                   });
}

template <typename T>
static void group_backward_of(const at::Tensor& grad, const at::Tensor& index,
                              const at::Tensor& sums) {
  const auto from = grad.accessor<T, 4>();
  auto to = sums.accessor<T, 3>();
  for_each_grouped(index, grad.size(1), sums.size(2),
                   [&](int64_t b, int64_t c, int64_t i, int64_t j, int64_t point) {
                     to[b][c][point] += from[b][c][i][j];
                   });
}

at::Tensor farthest_cpu(const at::Tensor& xyz, int64_t count) {
  const at::Tensor index = at::zeros({xyz.size(0), count}, xyz.options().dtype(at::kInt));
  AT_DISPATCH_FLOATING_TYPES(xyz.scalar_type(), "farthest",
                             [&] { farthest_of<scalar_t>(xyz, index); });
  return index;
}

at::Tensor ball_cpu(const at::Tensor& xyz, const at::Tensor& centers, double radius,
                    int64_t count) {
  const at::Tensor index =
      at::empty({centers.size(0), centers.size(1), count}, xyz.options().dtype(at::kInt));
  AT_DISPATCH_FLOATING_TYPES(xyz.scalar_type(), "ball",
                             [&] { ball_of<scalar_t>(xyz, centers, radius, index); });
  return index;
}

std::tuple<at::Tensor, at::Tensor> nearest_cpu(const at::Tensor& xyz, const at::Tensor& centers) {
  const at::Tensor distance = at::empty_like(centers);
  const at::Tensor index = at::empty(distance.sizes(), xyz.options().dtype(at::kInt));
  AT_DISPATCH_FLOATING_TYPES(xyz.scalar_type(), "nearest",
                             [&] { nearest_of<scalar_t>(xyz, centers, distance, index); });
  return {distance, index};
}

at::Tensor group_cpu(const at::Tensor& features, const at::Tensor& index) {
  const at::Tensor y = at::empty({features.size(0), features.size(1), index.size(1), index.size(2)},
                                 features.options());
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(features.scalar_type(), "group",
                                      [&] { group_of<scalar_t>(features, index, y); });
  return y;
}

at::Tensor group_backward_cpu(const at::Tensor& grad, const at::Tensor& index, int64_t n) {
  const at::Tensor sums = at::zeros({grad.size(0), grad.size(1), n}, grad.options());
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(grad.scalar_type(), "group_backward",
                                      [&] { group_backward_of<scalar_t>(grad, index, sums); });
  return sums;
}
