// Every new name of the page's tables, used once; names.cu has those that need nvcc. A test
// compiles this file for torch 2.10 (TORCH_TARGET_VERSION) and for the torch at hand. USE_CUDA:
// torch declares the CUDA functions of its C interface only there. Newer headers define newer
// TORCH_VERSION_... macros.
#define USE_CUDA
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
// Before Dispatch_v2.h, which uses its STD_TORCH_CHECK and does not include it.
#include <torch/headeronly/util/Exception.h>
//
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/Dispatch_v2.h>
#include <torch/headeronly/core/MemoryFormat.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/core/TensorAccessor.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Float4_e2m1fn_x2.h>
#include <torch/headeronly/util/Float8_e4m3fn.h>
#include <torch/headeronly/util/Float8_e8m0fnu.h>
#include <torch/headeronly/util/Half.h>
#include <torch/headeronly/util/complex.h>

#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>
#if defined(TORCH_VERSION_2_13_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_13_0
#include <torch/csrc/stable/generator.h>
#endif
#if defined(TORCH_VERSION_2_14_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_14_0
#include <torch/csrc/stable/pyobject.h>
#endif
// These have no guard of their own: the headers of that version and later have them for every
// target.
#ifdef TORCH_VERSION_2_14_0
#include <torch/headeronly/util/NumericUtils.h>
#endif
#ifdef TORCH_VERSION_2_15_0
#include <torch/headeronly/util/irange.h>
#endif

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// STD_CUDA_CHECK wants cuda_runtime.h, and this file compiles without it.
using cudaError_t = int;
cudaError_t cudaGetLastError();

template <typename T>
T first(const Tensor& x) {
  return *x.const_data_ptr<T>();
}

// A list of sizes, as a kernel's helper takes it.
int64_t product(torch::headeronly::IntHeaderOnlyArrayRef sizes) {
  int64_t all = 1;
  for (const int64_t size : sizes) all *= size;
  return all;
}

// Dispatch over more dtypes than the floating ones. One type in parentheses for each AT_EXPAND.
void dispatch(const Tensor& x, const Tensor& index) {
  THO_DISPATCH_V2(x.scalar_type(), "all types", AT_WRAP([&] { first<scalar_t>(x); }),
                  AT_EXPAND(AT_ALL_TYPES), ScalarType::Half, ScalarType::BFloat16,
                  ScalarType::Bool);
  THO_DISPATCH_V2(x.scalar_type(), "complex too", AT_WRAP([&] { first<scalar_t>(x); }),
                  AT_EXPAND(AT_INTEGRAL_TYPES), AT_EXPAND(AT_COMPLEX_TYPES));
  THO_DISPATCH_V2(index.scalar_type(), "index", AT_WRAP([&] { first<scalar_t>(index); }),
                  ScalarType::Int, ScalarType::Long);
}

// Functions of a tensor. What at:: spells as methods are functions here.
Tensor functions(const Tensor& x, int64_t n) {
  Tensor y = torch::stable::clone(x);
  torch::stable::copy_(y, x);
  torch::stable::zero_(y);
  torch::stable::fill_(y, 1.0);  // the value is a double, also for int64
  y = torch::stable::full({n, 2}, 1.0, ScalarType::Float, std::nullopt, x.device());
  y = torch::stable::view(y, {2, n});
  y = torch::stable::reshape(y, {2, n});
  y = torch::stable::transpose(y, 0, 1);
  y = torch::stable::narrow(y, 0, 0, 1);
  y = torch::stable::flatten(y);
  y = torch::stable::unsqueeze(y, 0);
  y = torch::stable::squeeze(y, 0);
  y = torch::stable::select(y, 0, 0);
  y = torch::stable::new_empty(y, {n, n});
  y = torch::stable::matmul(y, y);
  y = torch::stable::subtract(y, y, 2.0);
  y = torch::stable::pad(y, {0, 1});
  y = torch::stable::amax(y, 0);
  y = torch::stable::sum(y);
  y.set_requires_grad(false);
  int64_t value;
  TORCH_ERROR_CODE_CHECK(aoti_torch_item_int64(y.get(), &value));
  const torch::stable::Device device(torch::headeronly::DeviceType::CUDA, 0);
  y = torch::stable::to(y, device);
  y = torch::stable::contiguous(y, torch::headeronly::MemoryFormat::ChannelsLast);
#ifdef TORCH_VERSION_2_14_0
  y = torch::stable::permute(y, {1, 0});
  y = torch::stable::index_select(y, 0, x);
  y = torch::stable::floor_divide(y, x);
  y = torch::stable::bitwise_and(y, x);
  y = torch::stable::bitwise_or(y, x);
  y = torch::stable::bitwise_left_shift(y, x);
  y = torch::stable::bitwise_right_shift(y, x);
  if (torch::stable::is_pinned(y)) return x;
  if (torch::headeronly::_isnan(*x.const_data_ptr<float>())) return x;
#endif
#ifdef TORCH_VERSION_2_15_0
  y = std::get<0>(torch::stable::sort(y));
  for (const int64_t i : c10::irange(n)) value += i;
#endif
  return y.is_contiguous() && y.element_size() == 4 && y.storage_offset() == 0 ? y : x;
}

Tensor names(const Tensor& x, std::optional<Tensor> maybe, std::vector<Tensor> list) {
  STD_TORCH_CHECK(x.sizes().equals(list.at(0).sizes()), "shapes differ");
  STD_TORCH_CHECK(x.device() == maybe.value_or(x).device(), "devices differ");
  const Tensor y = torch::stable::empty_like(x);
  torch::stable::new_zeros(x, x.sizes(), ScalarType::Float);
  torch::stable::empty({2, 3}, ScalarType::Float, std::nullopt, x.device());
  torch::stable::contiguous(x);
  torch::stable::to(x, ScalarType::BFloat16);
  torch::stable::parallel_for(0, x.numel(), 1, [](int64_t, int64_t) {});
  THO_DISPATCH_V2(x.scalar_type(), "names", AT_WRAP([&] { first<scalar_t>(x); }),
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half);
  const torch::headeronly::Half half(1.0f);
  const torch::headeronly::BFloat16 bfloat16(static_cast<float>(half));
  y.mutable_data_ptr<torch::headeronly::BFloat16>()[0] = bfloat16;
  const torch::headeronly::HeaderOnlyTensorAccessor<float, 1> accessor(
      y.mutable_data_ptr<float>(), y.sizes().data(), y.strides().data());
  if (x.dim() == 0) throw std::out_of_range("an IndexError");

  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  void *stream, *blas;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  TORCH_ERROR_CODE_CHECK(torch_get_current_cuda_blas_handle(&blas));
  STD_CUDA_CHECK(cudaGetLastError());
  STD_CUDA_KERNEL_LAUNCH_CHECK();

  StableIValue stack[] = {torch::stable::detail::from(x)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::relu", "", stack, TORCH_ABI_VERSION));
#if defined(TORCH_VERSION_2_11_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_11_0
  torch::stable::from_blob(stream, {1}, {1}, x.device(), ScalarType::Float, [](void*) {});
#endif
#if defined(TORCH_VERSION_2_13_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_13_0
  stream = torch::stable::accelerator::getCurrentStream(0).nativeHandle();
  using torch::stable::Generator;
#endif
#if defined(TORCH_VERSION_2_14_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_14_0
  torch::stable::tensor_from_pyobject(stream);
  STD_TORCH_CHECK(x.has_storage(), "x is sparse");
#endif
#if defined(TORCH_VERSION_2_15_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_15_0
  if (torch::stable::is_tensor_pyobject(stream)) return y;
  torch::stable::empty({2}, torch::stable::dtype_from_pyobject(stream), std::nullopt,
                       torch::stable::device_from_pyobject(stream));
#endif
  return y;
}

// Their names compile with every target. Passing one of the last two as a dtype needs target 2.11.
using Dtypes = std::tuple<torch::headeronly::Float8_e4m3fn, torch::headeronly::Float8_e8m0fnu,
                          torch::headeronly::Float4_e2m1fn_x2>;
constexpr ScalarType kDtypes[] = {ScalarType::Float8_e4m3fn, ScalarType::Float8_e8m0fnu,
                                  ScalarType::Float4_e2m1fn_x2};

// Not in the headers of 2.10 to 2.13. Those of 2.14 and later have it for every target.
#ifdef TORCH_DYNAMIC_VERSION_CALL
const char* no_message() { return nullptr; }
const char* last_message() {
  return TORCH_DYNAMIC_VERSION_CALL(TORCH_VERSION_2_13_0, torch_exception_get_what, no_message);
}
#endif

STABLE_TORCH_LIBRARY(names, m) {
  m.def("names(Tensor x, Tensor? maybe, Tensor[] list) -> Tensor");
#if defined(TORCH_VERSION_2_12_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_12_0
  m.def("tagged(Tensor x) -> Tensor", {at::Tag::cudagraph_unsafe, at::Tag::needs_exact_strides});
#endif
#if defined(TORCH_VERSION_2_13_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_13_0
  m.set_python_module("port.names");
#endif
}
STABLE_TORCH_LIBRARY_IMPL(names, CPU, m) { m.impl("names", TORCH_BOX(&names)); }
