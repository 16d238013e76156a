// attend and append on torch's ABI-stable headers: schemas, checks, allocation, launch.
#include "decode_attention.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

using torch::headeronly::ScalarType;
using torch::stable::contiguous;
using torch::stable::Tensor;
using Shape = std::vector<int64_t>;

#ifdef WITH_CUDA
// torch declares it where USE_CUDA is defined.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);
#endif

namespace {

// Python sees a RuntimeError with the text. (STD_TORCH_CHECK would put this file's path and line
// before it, and crashes where the C++ runtime is linked statically, as on some machines.)
[[noreturn]] void refuse(const std::string& text) {
  throw std::runtime_error("decode_attention: " + text);
}

std::string text(ScalarType type, const Shape& shape) {
  std::string all;
  for (const int64_t size : shape) all += (all.empty() ? "" : ", ") + std::to_string(size);
  return toString(type) + ("[" + all + "]");
}

void check(const std::string& name, const Tensor& x, ScalarType type, const Shape& shape,
           const Tensor& like) {
  if (x.scalar_type() != type || !x.sizes().equals(shape)) {
    refuse(name + " is " + text(x.scalar_type(), x.sizes().vec()) + ", expected " +
           text(type, shape));
  }
  if (x.device() != like.device()) refuse(name + " and q are on different devices");
}

// Checks what both operators have: q [batch, heads, ...] and a cache [batch, key heads, capacity,
// d].
Sizes check_cache(const Tensor& q, int64_t dims, const Tensor& keys, const Tensor& values,
                  const std::optional<Tensor>& key_scale,
                  const std::optional<Tensor>& value_scale) {
  if (q.dim() != dims || keys.dim() != 4 || values.dim() != 4) {
    refuse("q has " + std::to_string(q.dim()) + " dimensions, keys " + std::to_string(keys.dim()) +
           " and values " + std::to_string(values.dim()) + ", expected " + std::to_string(dims) +
           ", 4 and 4");
  }
  const ScalarType type = q.scalar_type(), cached = keys.scalar_type();
  const bool is_int8 = cached == ScalarType::Char, is_float = type == ScalarType::Float;
  const bool is_half = type == ScalarType::Half || type == ScalarType::BFloat16;
  if (!is_half && (q.is_cuda() || !is_float)) {
    refuse(std::string("q is ") + toString(type) +
           ", expected Half or BFloat16 (on a CPU also Float)");
  }
  const int64_t batch = q.size(0), heads = q.size(1), key_heads = keys.size(1);
  const int64_t capacity = keys.size(2), d = keys.size(3), limit = 1 << 30;
  if (d != 64 && d != 128) refuse("keys are " + std::to_string(d) + " wide, expected 64 or 128");
  if (heads == 0 || key_heads == 0 || heads % key_heads != 0 || heads / key_heads > 16) {
    refuse("q has " + std::to_string(heads) + " heads and keys " + std::to_string(key_heads) +
           ", expected 1 to 16 heads for each key head");
  }
  const int64_t span = capacity * std::max(keys.stride(2), values.stride(2));  // the kernel's index
  if (capacity >= limit || span >= limit * 16 || batch * heads >= limit / kMaxSplits) {
    refuse("a size is too large for the kernel's 32-bit indices");
  }
  check("keys", keys, is_int8 ? cached : type, {batch, key_heads, capacity, d}, q);
  check("values", values, cached, {batch, key_heads, capacity, d}, q);
  if (is_int8 != key_scale.has_value() || is_int8 != value_scale.has_value()) {
    refuse("expected key_scale and value_scale with a cache of int8, and only then");
  }
  if (is_int8) {
    check("key_scale", *key_scale, ScalarType::Float, {batch, key_heads, capacity}, q);
    check("value_scale", *value_scale, ScalarType::Float, {batch, key_heads, capacity}, q);
  }
  return {static_cast<int>(batch),
          static_cast<int>(heads),
          static_cast<int>(key_heads),
          static_cast<int>(capacity),
          static_cast<int>(d),
          is_float                   ? DECODE_FLOAT32
          : type == ScalarType::Half ? DECODE_FLOAT16
                                     : DECODE_BFLOAT16,
          is_int8};
}

Rows rows(const Tensor& x) {
  const auto strides = x.strides();
  return {const_cast<void*>(x.const_data_ptr()), strides[0], strides[1], strides[2]};
}
Rows rows(const std::optional<Tensor>& x) { return x ? rows(*x) : Rows{}; }

template <typename T>
const T* read(const Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}

// Whether the last dimension is dense, and each row starts at a multiple of `bytes`.
bool is_aligned(const Tensor& x, size_t bytes) {
  const int64_t last = x.dim() - 1;
  bool is_fine =
      x.stride(last) == 1 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % bytes == 0;
  for (int64_t i = 0; i < last; ++i)
    is_fine = is_fine && (x.size(i) == 1 || x.stride(i) * x.element_size() % bytes == 0);
  return is_fine;
}
// Loads of 16 bytes need aligned rows. A copy of a whole cache is slow, but right.
Tensor tidy(const Tensor& x, size_t bytes) {
  return is_aligned(x, bytes) ? x : torch::stable::clone(torch::stable::contiguous(x));
}
Tensor dense_rows(const Tensor& x) { return x.stride(x.dim() - 1) == 1 ? x : contiguous(x); }

#ifdef WITH_CUDA
template <typename Function>
void on_gpu(const Tensor& x, const Function& launch) {
  // A kernel runs on the current device, and in the order of the stream that it is given.
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  const char* error = launch(static_cast<CUstream_st*>(stream));
  if (error != nullptr) refuse(error);
}
#endif

Tensor attend(Tensor q, Tensor keys, Tensor values, Tensor lengths, std::optional<double> scale,
              std::optional<Tensor> key_scale, std::optional<Tensor> value_scale) {
  const Sizes s = check_cache(q, 3, keys, values, key_scale, value_scale);
  check("q", q, q.scalar_type(), {s.batch, s.heads, s.d}, q);
  check("lengths", lengths, ScalarType::Int, {s.batch}, q);
  Tensor out = torch::stable::new_empty(q, {s.batch, s.heads, s.d});
  if (s.batch == 0) return out;
  q = tidy(q, 8);
  keys = tidy(keys, 16);
  values = tidy(values, 16);
  lengths = contiguous(lengths);
  const double factor = scale ? *scale : 1 / std::sqrt(static_cast<double>(s.d));
  AttendCall call = {s,
                     out.mutable_data_ptr(),
                     rows(q),
                     rows(keys),
                     rows(values),
                     rows(key_scale),
                     rows(value_scale),
                     read<int32_t>(lengths),
                     static_cast<float>(factor)};
#ifdef WITH_CUDA
  if (q.is_cuda()) {
    on_gpu(q, [&](CUstream_st* stream) {
      plan_on_gpu(call);
      // Freed when this function returns, before the kernels have run: torch gives the memory only
      // to later work on this stream.
      std::optional<Tensor> scratch;
      if (call.plan.splits > 1 && !call.plan.is_cluster) {
        const int64_t parts = int64_t{s.batch} * s.heads * call.plan.splits;
        scratch = torch::stable::new_empty(q, {parts * (s.d + 2)}, ScalarType::Float);
        call.scratch = static_cast<float*>(scratch->mutable_data_ptr());
      }
      return launch_attend(call, stream);
    });
    return out;
  }
#endif
  torch::stable::parallel_for(0, int64_t{s.batch} * s.key_heads, 1,
                              [&](int64_t begin, int64_t end) { attend_cpu(call, begin, end); });
  return out;
}

void check_written(const std::string& name, const Tensor& x) {
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) > 1 && x.stride(i) == 0)
      refuse(name + " is expanded: it shares memory with itself");
  }
}

Tensor append(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor lengths, Tensor keys,
              Tensor values, std::optional<Tensor> key_scale, std::optional<Tensor> value_scale,
              std::optional<Tensor> counts) {
  const Sizes s = check_cache(q, 4, keys, values, key_scale, value_scale);
  const int64_t tokens = q.size(2), positions = cos.dim() == 2 ? cos.size(0) : s.capacity;
  check("q", q, q.scalar_type(), {s.batch, s.heads, tokens, s.d}, q);
  check("k", k, q.scalar_type(), {s.batch, s.key_heads, tokens, s.d}, q);
  check("v", v, q.scalar_type(), {s.batch, s.key_heads, tokens, s.d}, q);
  check("cos", cos, ScalarType::Float, {positions, s.d / 2}, q);
  check("sin", sin, ScalarType::Float, {positions, s.d / 2}, q);
  check("lengths", lengths, ScalarType::Int, {s.batch}, q);
  if (counts) check("counts", *counts, ScalarType::Int, {s.batch}, q);
  if (positions < s.capacity || positions > 1 << 30 || s.batch * tokens > 1 << 30) {
    refuse("cos has " + std::to_string(positions) + " positions for a capacity of " +
           std::to_string(s.capacity) + ", expected as many or more");
  }
  check_written("keys", keys);
  check_written("values", values);
  if (key_scale) check_written("key_scale", *key_scale);
  if (value_scale) check_written("value_scale", *value_scale);
  if (keys.stride(3) != 1 || values.stride(3) != 1) {
    refuse("expected keys and values with a dense last dimension");
  }
  Tensor out = torch::stable::new_empty(q, {s.batch, s.heads, tokens, s.d});
  if (out.numel() == 0) return out;
  q = dense_rows(q);
  k = dense_rows(k);
  v = dense_rows(v);
  cos = contiguous(cos);
  sin = contiguous(sin);
  lengths = contiguous(lengths);
  if (counts) counts = contiguous(*counts);
  bool is_fine = true;
  for (const Tensor& x : {q, k, v, keys, values}) is_fine = is_fine && is_aligned(x, 16);
  const AppendCall call = {s,
                           out.mutable_data_ptr(),
                           rows(q),
                           rows(k),
                           rows(v),
                           rows(keys),
                           rows(values),
                           rows(key_scale),
                           rows(value_scale),
                           read<float>(cos),
                           read<float>(sin),
                           read<int32_t>(lengths),
                           counts ? read<int32_t>(*counts) : nullptr,
                           static_cast<int>(tokens),
                           static_cast<int>(positions),
                           is_fine};
#ifdef WITH_CUDA
  if (q.is_cuda()) {
    on_gpu(q, [&](CUstream_st* stream) { return launch_append(call, stream); });
    return out;
  }
#endif
  torch::stable::parallel_for(0, s.batch * tokens, 1,
                              [&](int64_t begin, int64_t end) { append_cpu(call, begin, end); });
  return out;
}

}  // namespace

// For tests, which have no GPU of these sizes: warps, splits, whether a cluster joins them.
extern "C" void decode_attention_plan(int64_t units, int64_t capacity, int is_int8, int processors,
                                      int shared, int can_cluster, int* found) {
  const Plan plan = make_plan(units, capacity, is_int8 != 0, processors, shared, can_cluster != 0);
  found[0] = plan.warps;
  found[1] = plan.splits;
  found[2] = plan.is_cluster;
}

STABLE_TORCH_LIBRARY(decode_attention, m) {
  m.def(
      "attend(Tensor q, Tensor keys, Tensor values, Tensor lengths, float? scale=None, "
      "Tensor? key_scale=None, Tensor? value_scale=None) -> Tensor");
  m.def(
      "append(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor lengths, Tensor(a!) "
      "keys, "
      "Tensor(b!) values, Tensor(c!)? key_scale=None, Tensor(d!)? value_scale=None, "
      "Tensor? counts=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(decode_attention, CPU, m) {
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("append", TORCH_BOX(&append));
}

#ifdef WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(decode_attention, CUDA, m) {
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("append", TORCH_BOX(&append));
}
#endif
