// What add2 demands of its tensors, and the words in which it refuses them. Written once for both
// bindings: add2.cpp (torch::stable::Tensor) and add2_pybind.cpp (at::Tensor) describe their
// tensors as Argument, and check those.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "add2.h"

namespace checks {

using torch::headeronly::ScalarType;

// Words are put together without <sstream>: it costs compile time, and printing a number through
// its locales crashes in a library that was linked to libstdc++.a, as some machines' compilers are
// set up to do.
inline std::string text(const char* word) { return word; }
inline std::string text(std::string word) { return word; }
inline std::string text(int64_t number) { return std::to_string(number); }

template <typename... Words>
[[noreturn]] void refuse(const Words&... words) {
  std::string message;
  ((message += text(words)), ...);
  throw std::runtime_error(message);  // Python sees a RuntimeError with this text
}

// A tensor as the checks see it. Each question to a tensor is a call into torch, so it is asked
// once.
struct Argument {
  enum Device { CPU, CUDA, OTHER };

  const char* name;
  ScalarType dtype;
  Device device;
  int64_t device_index;
  int64_t numel;
  bool contiguous;
  const void* data;
  int64_t dim;  // this and the next two may be left out of a contiguous tensor
  const int64_t *sizes, *strides;

  std::string device_text() const {
    if (device == CPU) return "cpu";
    return (device == CUDA ? "cuda:" : "device ") + text(device_index);
  }

  std::string shape_text() const {
    std::string shape;
    for (int64_t i = 0; i < dim; ++i) shape += (i ? ", " : "") + text(sizes[i]);
    return "[" + shape + "]";
  }
};

inline Add2Dtype dtype_of(const char* op, const Argument& tensor) {
  switch (tensor.dtype) {
    case ScalarType::Float:
      return ADD2_FLOAT32;
    case ScalarType::Double:
      return ADD2_FLOAT64;
    case ScalarType::Half:
      return ADD2_FLOAT16;
    case ScalarType::BFloat16:
      return ADD2_BFLOAT16;
    default:
      refuse(op, ": ", tensor.name, " has dtype ", torch::headeronly::toString(tensor.dtype),
             ", expected Float, Double, Half or BFloat16");
  }
}

inline void check_alike(const char* op, const Argument& tensor, const Argument& first) {
  if (tensor.device != first.device || tensor.device_index != first.device_index) {
    refuse(op, ": ", tensor.name, " is on ", tensor.device_text(), ", expected ",
           first.device_text(), " like ", first.name);
  }
  if (tensor.dtype != first.dtype) {
    refuse(op, ": ", tensor.name, " has dtype ", torch::headeronly::toString(tensor.dtype),
           ", expected ", torch::headeronly::toString(first.dtype), " like ", first.name);
  }
}

// add2(a, b) -> c
inline Add2Dtype check_add2(const Argument& a, const Argument& b) {
  const Add2Dtype dtype = dtype_of("add2", a);
  check_alike("add2", b, a);
  bool same = a.dim == b.dim;
  for (int64_t i = 0; same && i < a.dim; ++i) same = a.sizes[i] == b.sizes[i];
  if (!same) {
    refuse("add2: b has shape ", b.shape_text(), ", expected ", a.shape_text(),
           " like a (add2 does not broadcast)");
  }
  return dtype;
}

// c may be the very memory of an input: element i is read before it is written. Any other overlap
// would make the result depend on the order of the threads. An input counts from its first element
// to its last, whatever its strides.
inline void check_overlap(const char* op, const Argument& c, const Argument& input, int64_t n,
                          int64_t element_size) {
  if (n == 0 || (input.contiguous && input.data == c.data)) return;
  int64_t reach = input.contiguous ? input.numel : 1;
  for (int64_t i = 0; !input.contiguous && i < input.dim; ++i) {
    reach += (input.sizes[i] - 1) * input.strides[i];
  }
  const auto begin = reinterpret_cast<uintptr_t>(input.data);
  const auto c_begin = reinterpret_cast<uintptr_t>(c.data);
  if (begin < c_begin + c.numel * element_size && c_begin < begin + reach * element_size) {
    refuse(op, ": c shares memory with ", input.name, " but does not start where ", input.name,
           " starts, expected c to be ", input.name, " itself or memory of its own; pass ",
           input.name, ".clone()");
  }
}

// torch_launch_add2(c, a, b, n)
inline Add2Dtype check_launch(const Argument& c, const Argument& a, const Argument& b, int64_t n) {
  const char* op = "torch_launch_add2";
  const Add2Dtype dtype = dtype_of(op, c);
  check_alike(op, a, c);
  check_alike(op, b, c);
  if (n < 0) refuse(op, ": n is ", n, ", expected 0 or more");
  for (const Argument* tensor : {&c, &a, &b}) {
    if (n > tensor->numel) {
      refuse(op, ": n is ", n, ", but ", tensor->name, " has only ", tensor->numel, " elements");
    }
  }
  if (!c.contiguous) {
    refuse(op, ": c has shape ", c.shape_text(),
           " and is not contiguous, expected a contiguous tensor to write to");
  }
  const int64_t element_size = dtype == ADD2_FLOAT64 ? 8 : dtype == ADD2_FLOAT32 ? 4 : 2;
  check_overlap(op, c, a, n, element_size);
  check_overlap(op, c, b, n, element_size);
  return dtype;
}

}  // namespace checks
