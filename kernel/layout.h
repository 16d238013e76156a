// The layout of add2's result: as torch.add's, so that a tensor in channels_last, or a transposed
// one, is added as it lies in memory and stays what it is.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "strided.h"

using Strides = std::vector<int64_t>;

inline bool has_strides(const torch::stable::Tensor& x, const Strides& strides) {
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) != 1 && x.stride(i) != strides[i]) return false;  // a size of 1 needs no stride
  }
  return true;
}

inline Strides row_major(const torch::stable::Tensor& x) {
  Strides strides(x.dim(), 1);
  for (int64_t i = x.dim() - 1; i > 0; --i) {
    strides[i - 1] = strides[i] * (x.size(i) == 0 ? 1 : x.size(i));
  }
  return strides;
}

// The order of the result's dimensions, innermost first, for inputs that are not both contiguous.
// As for torch.add, a's strides decide; where they leave it open, as in an expanded tensor, b's do.
inline std::vector<int64_t> order_of_result(const torch::stable::Tensor& a,
                                            const torch::stable::Tensor& b) {
  const auto compare = [&](int64_t i, int64_t j) {  // < 0: i is inside j, > 0: j is inside i
    for (const auto* x : {&a, &b}) {
      const int64_t step_i = x->stride(i), step_j = x->stride(j);
      if (step_i == 0 || step_j == 0) continue;
      if (step_i != step_j) return step_i < step_j ? -1 : 1;
      if (x->size(i) > x->size(j)) return 1;
    }
    return 0;
  };
  std::vector<int64_t> order;
  for (int64_t dim = a.dim() - 1; dim >= 0; --dim) {
    order.push_back(dim);
    size_t place = order.size() - 1;
    for (size_t i = place; i-- > 0;) {  // not std::sort: `compare` may leave dimensions open
      const int sign = compare(order[i], order[place]);
      if (sign < 0) break;
      if (sign > 0) {
        std::swap(order[i], order[place]);
        place = i;
      }
    }
  }
  return order;
}

// The result's strides. If a and b have no gaps and the same strides, the result has these.
inline Strides result_strides(const torch::stable::Tensor& a, const torch::stable::Tensor& b,
                              const std::vector<int64_t>& order) {
  Strides strides(a.dim());
  int64_t step = 1;
  for (int64_t dim : order) {
    strides[dim] = step;
    step *= a.size(dim);
  }
  const auto own = a.strides();
  if (own.equals(b.strides()) && has_strides(a, strides)) return Strides(own.begin(), own.end());
  return strides;
}

// How a and b are walked in the order of the result's memory. Dimensions that are contiguous with
// each other in both a and b are merged.
inline Add2Walk walk_in_order(const torch::stable::Tensor& a, const torch::stable::Tensor& b,
                              const std::vector<int64_t>& order) {
  Add2Walk walk = {1, {1}, {1}, {1}};
  for (int64_t dim : order) {
    const int64_t size = a.size(dim), a_step = a.stride(dim), b_step = b.stride(dim);
    int last = walk.count - 1;
    const int64_t width = walk.sizes[last];
    if (size == 1) continue;
    if (width > 1 && a_step == walk.a_steps[last] * width && b_step == walk.b_steps[last] * width) {
      walk.sizes[last] *= size;
      continue;
    }
    if (width > 1) last = walk.count++;
    walk.sizes[last] = size;
    walk.a_steps[last] = a_step;
    walk.b_steps[last] = b_step;
  }
  return walk;
}
