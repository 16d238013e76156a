// Each row of the page's table "Schema types and C++ types": an operator, and the C++ function that
// takes and returns it. A test builds this file for torch 2.10, loads it, and calls every operator.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::Layout;
using torch::headeronly::MemoryFormat;
using torch::headeronly::ScalarType;
using torch::stable::Device;
using torch::stable::Tensor;

// Tensors. None passes for a Tensor, and is then not defined().
Tensor tensor(const Tensor& x) { return torch::stable::clone(x); }
bool is_defined(const Tensor& x) { return x.defined(); }
std::optional<Tensor> optional_tensor(const std::optional<Tensor>& x) {
  return x ? std::optional(torch::stable::clone(*x)) : std::nullopt;
}
std::vector<Tensor> tensors(const std::vector<Tensor>& all) {
  std::vector<Tensor> copies;
  for (const Tensor& x : all) copies.push_back(torch::stable::clone(x));
  return copies;
}
std::vector<std::optional<Tensor>> optional_tensors(const std::vector<std::optional<Tensor>>& all) {
  std::vector<std::optional<Tensor>> copies;
  for (const std::optional<Tensor>& x : all) copies.push_back(optional_tensor(x));
  return copies;
}

// Tensors that are written.
void write(Tensor x) { torch::stable::fill_(x, 3); }
void write_all(const std::vector<Tensor>& all) {
  for (Tensor x : all) torch::stable::fill_(x, 3);
}
Tensor count_and_double(Tensor calls, const Tensor& x) {
  calls.mutable_data_ptr<int64_t>()[0] += 1;
  Tensor y = torch::stable::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    y.mutable_data_ptr<float>()[i] = 2 * x.const_data_ptr<float>()[i];
  }
  return y;
}

// Numbers, bool, text.
int64_t integer(int64_t x) { return x; }
double number(double x) { return x; }
bool flag(bool x) { return x; }
std::string text(const std::string& x) { return x; }
int64_t length(std::string_view x) { return x.size(); }
std::optional<double> optional_number(std::optional<double> x) { return x; }

// Lists of them. A list of bool can only be an argument.
std::vector<int64_t> integers(const std::vector<int64_t>& x) { return x; }
int64_t product(IntHeaderOnlyArrayRef sizes) {  // a view of them: only for an argument
  int64_t all = 1;
  for (const int64_t size : sizes) all *= size;
  return all;
}
std::vector<double> numbers(const std::vector<double>& x) { return x; }
int64_t count_true(const std::vector<bool>& flags) {
  int64_t all = 0;
  for (const bool each : flags) all += each;
  return all;
}
std::vector<std::string> texts(const std::vector<std::string>& x) { return x; }
std::optional<std::vector<int64_t>> optional_integers(
    const std::optional<std::vector<int64_t>>& x) {
  return x;
}

// torch's own types. All but a device come back to Python as numbers.
ScalarType dtype(ScalarType x) { return x; }
Layout layout(Layout x) { return x; }
MemoryFormat memory_format(MemoryFormat x) { return x; }
Device device(Device x) { return x; }

// Several results; one of them may be None.
std::tuple<Tensor, std::optional<Tensor>, int64_t> several(const Tensor& x, bool both) {
  const Tensor y = torch::stable::clone(x);
  return {y, both ? std::optional(torch::stable::clone(x)) : std::nullopt, x.dim()};
}
// at::Tensor's is_non_overlapping_and_dense(): its elements fill one block of memory, in some
// order.
bool is_dense(const Tensor& x) {
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (int64_t k = 0; k < x.dim(); ++k) {
    if (x.size(k) != 1) dims.emplace_back(x.stride(k), x.size(k));
  }
  std::sort(dims.begin(), dims.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != expected) return x.numel() == 0;
    expected *= size;
  }
  return true;
}

// Defaults stand only in the schema; what follows * is passed by its name.
Tensor filled(const Tensor& x, double value, const std::string& how) {
  Tensor y = torch::stable::clone(x);
  torch::stable::fill_(y, how == "minus" ? -value : value);
  return y;
}

STABLE_TORCH_LIBRARY(schema_types, m) {
  m.def("tensor(Tensor x) -> Tensor");
  m.def("is_defined(Tensor x) -> bool");
  m.def("optional_tensor(Tensor? x) -> Tensor?");
  m.def("tensors(Tensor[] all) -> Tensor[]");
  m.def("optional_tensors(Tensor?[] all) -> Tensor?[]");
  m.def("write(Tensor(a!) x) -> ()");
  m.def("write_all(Tensor(a!)[] all) -> ()");
  m.def("count_and_double(Tensor(a!) calls, Tensor x) -> Tensor");
  m.def("integer(int x) -> int");
  m.def("size(SymInt x) -> SymInt");
  m.def("number(float x) -> float");
  m.def("flag(bool x) -> bool");
  m.def("text(str x) -> str");
  m.def("length(str x) -> int");
  m.def("optional_number(float? x) -> float?");
  m.def("integers(int[] x) -> int[]");
  m.def("pair(int[2] x) -> int[]");
  m.def("product(SymInt[] sizes) -> int");
  m.def("numbers(float[] x) -> float[]");
  m.def("count_true(bool[] flags) -> int");
  m.def("texts(str[] x) -> str[]");
  m.def("optional_integers(int[]? x) -> int[]?");
  m.def("dtype(ScalarType x) -> ScalarType");
  m.def("layout(Layout x) -> Layout");
  m.def("memory_format(MemoryFormat x) -> MemoryFormat");
  m.def("device(Device x) -> Device");
  m.def("several(Tensor x, bool both) -> (Tensor, Tensor?, int)");
  m.def("is_dense(Tensor x) -> bool");
  m.def("filled(Tensor x, *, float value=1.0, str how=\"plus\") -> Tensor");
}

// The key at which an operator is found that has no tensor, and so no device to choose by.
STABLE_TORCH_LIBRARY_IMPL(schema_types, CompositeExplicitAutograd, m) {
  m.impl("tensor", TORCH_BOX(&tensor));
  m.impl("is_defined", TORCH_BOX(&is_defined));
  m.impl("optional_tensor", TORCH_BOX(&optional_tensor));
  m.impl("tensors", TORCH_BOX(&tensors));
  m.impl("optional_tensors", TORCH_BOX(&optional_tensors));
  m.impl("write", TORCH_BOX(&write));
  m.impl("write_all", TORCH_BOX(&write_all));
  m.impl("count_and_double", TORCH_BOX(&count_and_double));
  m.impl("integer", TORCH_BOX(&integer));
  m.impl("size", TORCH_BOX(&integer));
  m.impl("number", TORCH_BOX(&number));
  m.impl("flag", TORCH_BOX(&flag));
  m.impl("text", TORCH_BOX(&text));
  m.impl("length", TORCH_BOX(&length));
  m.impl("optional_number", TORCH_BOX(&optional_number));
  m.impl("integers", TORCH_BOX(&integers));
  m.impl("pair", TORCH_BOX(&integers));
  m.impl("product", TORCH_BOX(&product));
  m.impl("numbers", TORCH_BOX(&numbers));
  m.impl("count_true", TORCH_BOX(&count_true));
  m.impl("texts", TORCH_BOX(&texts));
  m.impl("optional_integers", TORCH_BOX(&optional_integers));
  m.impl("dtype", TORCH_BOX(&dtype));
  m.impl("layout", TORCH_BOX(&layout));
  m.impl("memory_format", TORCH_BOX(&memory_format));
  m.impl("device", TORCH_BOX(&device));
  m.impl("several", TORCH_BOX(&several));
  m.impl("is_dense", TORCH_BOX(&is_dense));
  m.impl("filled", TORCH_BOX(&filled));
}
