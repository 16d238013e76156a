// Whether tensors share elements, exactly: kv[:, 0] and kv[:, 1] of one tensor lie between each
// other and share none.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <vector>

namespace overlap {

using torch::stable::Tensor;

// A number from `low` to `high`, times `stride` bytes.
struct Term {
  int64_t stride, low, high;
};

// Can one number for each term make their sum `distance`? The terms go from the largest stride to
// the smallest, so for usual tensors one or two numbers of a term are possible. `budget` ends the
// search in others; the answer is then true.
inline bool can_sum_to(int64_t distance, const Term* term, const Term* end, int& budget) {
  if (term == end) return distance == 0;
  if (--budget < 0) return true;
  int64_t low = 0, high = 0;  // of the sum of the terms that follow
  for (const Term* next = term + 1; next != end; ++next) {
    low += next->low * next->stride;
    high += next->high * next->stride;
  }
  const auto floor_divide = [&](int64_t x) {
    return (x >= 0 ? x : x - term->stride + 1) / term->stride;
  };
  const int64_t first = std::max(term->low, -floor_divide(high - distance));
  const int64_t last = std::min(term->high, floor_divide(distance - low));
  for (int64_t n = first; n <= last; ++n) {
    if (can_sum_to(distance - n * term->stride, term + 1, end, budget)) return true;
  }
  return false;
}

inline bool can_sum_to(int64_t distance, std::vector<Term> terms) {
  std::sort(terms.begin(), terms.end(), [](auto& a, auto& b) { return a.stride > b.stride; });
  size_t count = 0;  // terms of one stride are one term
  for (const Term& term : terms) {
    if (count > 0 && terms[count - 1].stride == term.stride) {
      terms[count - 1].low += term.low;
      terms[count - 1].high += term.high;
    } else {
      terms[count++] = term;
    }
  }
  int budget = 1000;
  return can_sum_to(distance, terms.data(), terms.data() + count, budget);
}

// The dimensions of x as terms, in bytes, without those of stride 0; then the bytes of an element.
inline std::vector<Term> terms(const Tensor& x) {
  std::vector<Term> all;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) > 1 && x.stride(i) > 0) {
      all.push_back({x.stride(i) * x.element_size(), 0, x.size(i) - 1});
    }
  }
  all.push_back({1, 0, x.element_size() - 1});
  return all;
}

inline bool share_elements(const Tensor& x, const Tensor& y) {
  if (x.numel() == 0 || y.numel() == 0) return false;
  std::vector<Term> all = terms(x);
  for (const Term& term : terms(y)) all.push_back({term.stride, -term.high, 0});
  const auto address = [](const Tensor& t) {
    return reinterpret_cast<int64_t>(t.const_data_ptr());
  };
  return can_sum_to(address(y) - address(x), all);
}

// Whether two different indices of x lead to one element.
inline bool shares_with_itself(const Tensor& x) {
  if (x.numel() == 0) return false;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) > 1 && x.stride(i) == 0) return true;
  }
  std::vector<Term> all = terms(x);
  all.pop_back();  // elements start at multiples of their size
  for (Term& term : all) term.low = -term.high;
  for (; !all.empty(); all.erase(all.begin())) {
    std::vector<Term> difference = all;
    difference[0].low = 1;  // the first dimension in which the two indices differ
    if (can_sum_to(0, difference)) return true;
  }
  return false;
}

}  // namespace overlap
