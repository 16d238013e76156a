// attend and append on torch's ABI-stable headers: schemas, checks, allocation, launch.
#include "decode_attention.h"

#include "overlap.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "common/operator.h"

using Optional = std::optional<Tensor>;

namespace {

constexpr Operator self = {"decode_attention"};

// The kernels load 16 bytes at a time: the last dimension has to be dense, and each row to start at
// a multiple of 16 bytes. A copy of a whole cache is slow, but right.
bool is_tidy(const Tensor& x) {
  const int64_t last = x.dim() - 1;
  bool is_fine = x.stride(last) == 1 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  for (int64_t i = 0; i < last; ++i)
    is_fine = is_fine && (x.size(i) == 1 || x.stride(i) * x.element_size() % 16 == 0);
  return is_fine;
}
void tidy(Tensor& x) {
  if (!is_tidy(x)) x = torch::stable::clone(torch::stable::contiguous(x));
}

Rows rows(const Tensor& x) {
  const auto strides = x.strides();
  return {const_cast<void*>(x.const_data_ptr()), strides[0], strides[1], strides[2]};
}

template <typename T>
const T* dense(Tensor& x) {
  x = torch::stable::contiguous(x);
  return static_cast<const T*>(x.const_data_ptr());
}

// Checks what both operators have, and makes the call's part of it. q: [batch, heads, d] to attend,
// [batch, heads, tokens, d] to append.
template <typename AnyCall>
AnyCall prepare(Tensor& q, Tensor& keys, Tensor& values, Tensor& lengths, const Optional& key_scale,
                const Optional& value_scale) {
  constexpr bool writes = !std::is_same_v<AnyCall, AttendCall>;
  constexpr int64_t dims = std::is_same_v<AnyCall, AppendCall> ? 4 : 3;
  if (!q.defined() || !keys.defined() || q.dim() != dims || keys.dim() != 4)
    self.refuse("expected tensors, q with ", std::to_string(dims), " dimensions and keys with 4");
  const ScalarType type = q.scalar_type(), cached = keys.scalar_type();
  const bool is_int8 = cached == ScalarType::Char;
  const DecodeDtype dtype = type == ScalarType::Half       ? DECODE_FLOAT16
                            : type == ScalarType::BFloat16 ? DECODE_BFLOAT16
                                                           : DECODE_FLOAT32;
  if (dtype == DECODE_FLOAT32 && (q.is_cuda() || type != ScalarType::Float))
    self.refuse(toString(type), " q: expected Half or BFloat16 (on a CPU also Float)");
  const int64_t batch = q.size(0), heads = q.size(1), key_heads = keys.size(1);
  const int64_t capacity = keys.size(2), d = keys.size(3), limit = 1 << 30;
  if (d != 64 && d != 128) self.refuse("keys are ", std::to_string(d), " wide, expected 64 or 128");
  if (heads == 0 || key_heads == 0 || heads % key_heads != 0 || heads / key_heads > 16) {
    self.refuse("q has ", std::to_string(heads), " heads and keys ", std::to_string(key_heads),
                ", expected 1 to 16 heads for each key head");
  }
  if (is_int8 != key_scale.has_value() || is_int8 != value_scale.has_value())
    self.refuse("expected key_scale and value_scale with a cache of int8, and only then");
  if (capacity >= limit || batch * heads >= limit / kMaxSplits || q.numel() / heads >= limit * d)
    self.refuse("a size is too large for the kernel's 32-bit indices");
  const int64_t size[] = {batch, key_heads, capacity, d};
  std::vector<int64_t> q_size = q.sizes().vec();
  q_size.back() = d;
  self.expect("q", q, q, type, q_size);
  self.expect("keys", keys, q, is_int8 ? cached : type, size);
  self.expect("values", values, q, cached, size);
  self.expect("lengths", lengths, q, ScalarType::Int, {batch});
  if (writes && !(is_tidy(keys) && is_tidy(values)))  // it cannot write into copies
    self.refuse("expected keys and values with dense rows that start at multiples of 16 bytes");
  for (Tensor* x : {&q, &keys, &values}) tidy(*x);
  AnyCall call;
  static_cast<Call&>(call) = {int(batch),
                              int(heads),
                              int(key_heads),
                              int(capacity),
                              int(d),
                              dtype,
                              is_int8 ? DECODE_INT8 : dtype};
  call.q = rows(q);
  call.keys = rows(keys);
  call.values = rows(values);
  call.lengths = dense<int32_t>(lengths);
  if (is_int8) {
    self.expect("key_scale", *key_scale, q, ScalarType::Float, {batch, key_heads, capacity});
    self.expect("value_scale", *value_scale, q, ScalarType::Float, {batch, key_heads, capacity});
    call.key_scale = rows(*key_scale);
    call.value_scale = rows(*value_scale);
  }
  return call;
}

// Runs a call where q is: in the current stream of its GPU, or by torch's threads on a CPU.
template <typename AnyCall>
void run(AnyCall call, [[maybe_unused]] const Tensor& q, int64_t items) {
#ifdef USE_CUDA
  if (q.is_cuda()) {
    // Freed when this function returns, before the kernels have run: torch gives the memory only to
    // later work on this stream.
    Optional scratch;
    self.on_gpu(q, [&](CUstream_st* stream) {
      if constexpr (std::is_base_of_v<AttendCall, AnyCall>) {
        if (const int64_t floats = plan_on_gpu(call)) {
          scratch = torch::stable::new_empty(q, {floats}, ScalarType::Float);
          call.scratch = static_cast<float*>(scratch->mutable_data_ptr());
        }
      }
      return run_on_gpu(call, stream);
    });
    return;
  }
#endif
  if constexpr (!std::is_same_v<AnyCall, StepCall>) {
    torch::stable::parallel_for(0, items, 1,
                                [&](int64_t begin, int64_t end) { run_on_cpu(call, begin, end); });
  }
}

Tensor attend(Tensor q, Tensor keys, Tensor values, Tensor lengths, std::optional<double> scale,
              Optional key_scale, Optional value_scale) {
  auto call = prepare<AttendCall>(q, keys, values, lengths, key_scale, value_scale);
  Tensor out = torch::stable::new_empty(q, q.sizes());
  if (out.numel() == 0) return out;
  call.out = rows(out);
  call.scale = static_cast<float>(scale ? *scale : 1 / std::sqrt(static_cast<double>(call.d)));
  run(call, q, int64_t{call.batch} * call.key_heads);
  return out;
}

// What append() writes must not be written twice, nor read while it is written.
using Named = std::pair<const char*, Optional>;
void check_memory(const std::vector<Named>& written, std::vector<Named> read) {
  for (const auto& [name, x] : written) {
    if (!x) continue;
    if (overlap::shares_with_itself(*x))
      self.refuse(name, " shares memory with itself: two of its elements are one");
    for (const auto& [other, y] : read) {
      if (y && overlap::share_elements(*x, *y))
        self.refuse(name, " shares memory with ", other, ": allocate a tensor for each");
    }
    read.emplace_back(name, x);
  }
}

// A table of angles, whose rows follow each other: step() loads two numbers at a time.
const float* table(Tensor& x) {
  x = torch::stable::contiguous(x);
  tidy(x);
  return static_cast<const float*>(x.const_data_ptr());
}

// Checks new tokens and the memory of a call that writes them, and puts both into it. k and v have
// q's shape, but for the number of heads. counts: append()'s.
template <typename AnyCall>
void take_tokens(AnyCall& call, const Tensor& q, Tensor& k, Tensor& v, Tensor& cos, Tensor& sin,
                 const Tensor& lengths, const Tensor& keys, const Tensor& values,
                 const Optional& key_scale, const Optional& value_scale,
                 const Optional& counts = std::nullopt) {
  std::vector<int64_t> size(q.sizes().begin(), q.sizes().end());
  size[1] = call.key_heads;
  const int64_t given = cos.defined() && cos.dim() == 2 ? cos.size(0) : 0;
  const int64_t positions = std::max(given, keys.size(2));
  self.expect("k", k, q, q.scalar_type(), size);
  self.expect("v", v, q, q.scalar_type(), size);
  self.expect("cos", cos, q, ScalarType::Float, {positions, call.d / 2});
  self.expect("sin", sin, q, ScalarType::Float, {positions, call.d / 2});
  if (counts) self.expect("counts", *counts, q, ScalarType::Int, {call.batch});
  check_memory(
      {{"keys", keys}, {"values", values}, {"key_scale", key_scale}, {"value_scale", value_scale}},
      {{"q", q},
       {"k", k},
       {"v", v},
       {"cos", cos},
       {"sin", sin},
       {"lengths", lengths},
       {"counts", counts}});
  if (q.numel() == 0) return;
  for (Tensor* x : {&k, &v}) tidy(*x);
  call.k = rows(k);
  call.v = rows(v);
  call.cos = table(cos);
  call.sin = table(sin);
  call.positions = static_cast<int>(std::min<int64_t>(positions, 1 << 30));
}

Tensor append(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor lengths, Tensor keys,
              Tensor values, Optional key_scale, Optional value_scale, Optional counts) {
  auto call = prepare<AppendCall>(q, keys, values, lengths, key_scale, value_scale);
  take_tokens(call, q, k, v, cos, sin, lengths, keys, values, key_scale, value_scale, counts);
  Tensor out = torch::stable::new_empty(q, q.sizes());
  if (out.numel() == 0) return out;
  call.out = rows(out);
  if (counts) call.counts = dense<int32_t>(*counts);
  call.tokens = static_cast<int>(q.size(2));
  run(call, q, q.size(0) * q.size(2));
  return out;
}

// append() of one token of each row, then attend(), in one kernel on a GPU.
Tensor step(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor lengths, Tensor keys,
            Tensor values, Optional key_scale, Optional value_scale, std::optional<double> scale) {
  auto call = prepare<StepCall>(q, keys, values, lengths, key_scale, value_scale);
  take_tokens(call, q, k, v, cos, sin, lengths, keys, values, key_scale, value_scale);
  const int64_t batch = call.batch, key_heads = call.key_heads, d = call.d;
  Tensor out = torch::stable::new_empty(q, q.sizes());
  if (out.numel() == 0) return out;
  call.out = rows(out);
  call.scale = static_cast<float>(scale ? *scale : 1 / std::sqrt(static_cast<double>(d)));
#ifdef USE_CUDA
  if (q.is_cuda()) {
    run(call, q, batch * key_heads);
    return out;
  }
#endif
  const auto of_one = [](const Tensor& x) { return torch::stable::unsqueeze(x, 2); };
  const Tensor rotated = append(of_one(q), of_one(k), of_one(v), cos, sin, lengths, keys, values,
                                key_scale, value_scale, std::nullopt);
  Tensor after = torch::stable::clone(lengths);
  int32_t* const counts = static_cast<int32_t*>(after.mutable_data_ptr());
  for (int64_t i = 0; i < batch; ++i) counts[i] += 1;
  return attend(torch::stable::select(rotated, 2, 0), keys, values, after, scale, key_scale,
                value_scale);
}

}  // namespace

STABLE_TORCH_LIBRARY(decode_attention, m) {
  m.def(
      "attend(Tensor q, Tensor keys, Tensor values, Tensor lengths, float? scale=None, "
      "Tensor? key_scale=None, Tensor? value_scale=None) -> Tensor");
  m.def(
      "append(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor lengths, "
      "Tensor(a!) keys, Tensor(b!) values, Tensor(c!)? key_scale=None, "
      "Tensor(d!)? value_scale=None, Tensor? counts=None) -> Tensor");
  m.def(
      "step(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor lengths, Tensor(a!) keys, "
      "Tensor(b!) values, Tensor(c!)? key_scale=None, Tensor(d!)? value_scale=None, "
      "float? scale=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(decode_attention, CPU, m) {
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("append", TORCH_BOX(&append));
  m.impl("step", TORCH_BOX(&step));
}

#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(decode_attention, CUDA, m) {
  m.impl("attend", TORCH_BOX(&attend));
  m.impl("append", TORCH_BOX(&append));
  m.impl("step", TORCH_BOX(&step));
}
#endif
