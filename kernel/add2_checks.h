// What add2 demands of its tensors, and the words in which it refuses them. Written once for both
// bindings: the ABI-stable torch::stable::Tensor (add2.cpp) and ATen's at::Tensor (add2_pybind.cpp)
// share the names used here.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "add2.h"

namespace checks {

// Words are put together without <iostream>: it costs compile time, and its locales break in a
// library that has been linked to libstdc++.a, as happens where a compiler finds no libstdc++.so.
inline std::string text(const char* word) { return word; }
inline std::string text(std::string word) { return word; }
inline std::string text(int64_t number) { return std::to_string(number); }

template <typename... Words>
[[noreturn]] void refuse(const Words&... words) {
  std::string message;
  ((message += text(words)), ...);
  throw std::runtime_error(message);  // Python sees a RuntimeError with this text
}

template <typename Tensor>
std::string device_text(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  const std::string type = tensor.is_cuda() ? "cuda:" : "device ";
  return type + std::to_string(tensor.get_device());
}

template <typename Tensor>
std::string shape_text(const Tensor& tensor) {
  std::string shape;
  for (const int64_t size : tensor.sizes()) shape += (shape.empty() ? "" : ", ") + text(size);
  return "[" + shape + "]";
}

template <typename Tensor>
Add2Dtype dtype_of(const char* op, const char* name, const Tensor& tensor) {
  using torch::headeronly::ScalarType;
  const ScalarType type = tensor.scalar_type();
  switch (type) {
    case ScalarType::Float:
      return ADD2_FLOAT32;
    case ScalarType::Double:
      return ADD2_FLOAT64;
    case ScalarType::Half:
      return ADD2_FLOAT16;
    case ScalarType::BFloat16:
      return ADD2_BFLOAT16;
    default:
      refuse(op, ": ", name, " has dtype ", torch::headeronly::toString(type),
             ", expected Float, Double, Half or BFloat16");
  }
}

template <typename Tensor>
void check_alike(const char* op, const char* name, const Tensor& tensor, const char* first_name,
                 const Tensor& first) {
  if (tensor.is_cuda() != first.is_cuda() || tensor.is_cpu() != first.is_cpu() ||
      tensor.get_device() != first.get_device()) {
    refuse(op, ": ", name, " is on ", device_text(tensor), ", expected ", device_text(first),
           " like ", first_name);
  }
  if (tensor.scalar_type() != first.scalar_type()) {
    refuse(op, ": ", name, " has dtype ", torch::headeronly::toString(tensor.scalar_type()),
           ", expected ", torch::headeronly::toString(first.scalar_type()), " like ", first_name);
  }
}

// add2(a, b) -> c
template <typename Tensor>
Add2Dtype check_add2(const Tensor& a, const Tensor& b) {
  const Add2Dtype dtype = dtype_of("add2", "a", a);
  check_alike("add2", "b", b, "a", a);
  const auto expected = a.sizes(), found = b.sizes();
  bool same = found.size() == expected.size();
  for (size_t i = 0; same && i < expected.size(); ++i) same = found[i] == expected[i];
  if (!same) {
    refuse("add2: b has shape ", shape_text(b), ", expected ", shape_text(a),
           " like a (add2 does not broadcast)");
  }
  return dtype;
}

// The bytes from a tensor's first element to its last, whatever its strides: [begin, end).
template <typename Tensor>
void bytes_of(const Tensor& tensor, uintptr_t& begin, uintptr_t& end) {
  begin = end = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  if (tensor.numel() == 0) return;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    end += (sizes[i] - 1) * strides[i] * tensor.element_size();  // torch has no negative strides
  }
  end += tensor.element_size();
}

// c may be the very memory of an input: element i is read before it is written. Any other overlap
// would make the result depend on the order of the threads.
template <typename Tensor>
void check_overlap(const char* op, const Tensor& c, const char* name, const Tensor& input,
                   int64_t n) {
  if (n == 0 || (input.is_contiguous() && input.data_ptr() == c.data_ptr())) return;
  uintptr_t begin, end, c_begin, c_end;
  bytes_of(input, begin, end);
  bytes_of(c, c_begin, c_end);
  if (begin < c_end && c_begin < end) {
    refuse(op, ": c shares memory with ", name, " but does not start where ", name,
           " starts, expected c to be ", name, " itself or memory of its own; pass ", name,
           ".clone()");
  }
}

// torch_launch_add2(c, a, b, n)
template <typename Tensor>
Add2Dtype check_launch(const Tensor& c, const Tensor& a, const Tensor& b, int64_t n) {
  const char* op = "torch_launch_add2";
  const Add2Dtype dtype = dtype_of(op, "c", c);
  check_alike(op, "a", a, "c", c);
  check_alike(op, "b", b, "c", c);
  if (n < 0) refuse(op, ": n is ", n, ", expected 0 or more");
  const auto check_length = [&](const char* name, const Tensor& tensor) {
    if (n > tensor.numel()) {
      refuse(op, ": n is ", n, ", but ", name, " has only ", tensor.numel(), " elements");
    }
  };
  check_length("c", c);
  check_length("a", a);
  check_length("b", b);
  if (!c.is_contiguous()) {
    refuse(op, ": c has shape ", shape_text(c),
           " and is not contiguous, expected a contiguous tensor to write to");
  }
  check_overlap(op, c, "a", a, n);
  check_overlap(op, c, "b", b, n);
  return dtype;
}

}  // namespace checks
