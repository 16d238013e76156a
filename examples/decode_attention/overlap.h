// Whether tensors share elements, exactly: kv[:, 0] and kv[:, 1] of one tensor lie between each
// other and share none.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <functional>
#include <map>

#include "common/divide.h"

namespace overlap {

using torch::stable::Tensor;

// Strides in bytes, the largest first, and up to how many of each a distance may have. So for usual
// tensors one or two numbers of a stride are possible.
using Strides = std::map<int64_t, int64_t, std::greater<>>;

// Can strides from `next` on add up to this distance? `budget` ends the search in unusual tensors;
// the answer is then true.
inline bool can_reach(int64_t distance, const Strides& strides, Strides::const_iterator next,
                      int& budget) {
  if (distance < 0) return false;
  if (next == strides.end()) return distance == 0;
  if (--budget < 0) return true;
  const auto [stride, most] = *next++;
  int64_t rest = 0;  // that the smaller strides can reach
  for (auto smaller = next; smaller != strides.end(); ++smaller)
    rest += smaller->first * smaller->second;
  const int64_t least = distance > rest ? divide_up(distance - rest, stride) : 0;
  for (int64_t n = least; n <= std::min(most, distance / stride); ++n) {
    if (can_reach(distance - n * stride, strides, next, budget)) return true;
  }
  return false;
}

inline bool can_reach(int64_t distance, Strides& strides) {
  strides.erase(0);
  int budget = 1000;
  return can_reach(distance, strides, strides.begin(), budget);
}

// Whether x + i = y + j for a byte at i in x and at j in y: then i + (last - j) = y + last - x.
inline bool share_elements(const Tensor& x, const Tensor& y) {
  if (x.numel() == 0 || y.numel() == 0) return false;
  Strides strides;
  const auto add = [&](const Tensor& t) {
    int64_t last = t.element_size() - 1;  // the last byte
    strides[1] += last;
    for (int64_t i = 0; i < t.dim(); ++i) {
      strides[t.stride(i) * t.element_size()] += t.size(i) - 1;
      last += t.stride(i) * t.element_size() * (t.size(i) - 1);
    }
    return static_cast<const char*>(t.const_data_ptr()) + last;
  };
  add(x);
  const int64_t distance = add(y) - static_cast<const char*>(x.const_data_ptr());
  return can_reach(distance, strides);
}

// Whether two different indices of x lead to one element: they first differ in some dimension, and
// then by -most to most in others.
inline bool shares_with_itself(const Tensor& x) {
  if (x.numel() == 0) return false;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) == 1) continue;
    if (x.stride(i) == 0) return true;
    int64_t distance = -x.stride(i);
    Strides strides = {{x.stride(i), x.size(i) - 2}};
    for (int64_t j = i + 1; j < x.dim(); ++j) {
      distance += x.stride(j) * (x.size(j) - 1);
      strides[x.stride(j)] += 2 * (x.size(j) - 1);
    }
    if (can_reach(distance, strides)) return true;
  }
  return false;
}

}  // namespace overlap
