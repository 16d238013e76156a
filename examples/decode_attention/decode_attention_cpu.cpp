// attend() and append() on a CPU: the reference to read first. Loops over d are the inner ones, and
// dense, so the compiler vectorizes them.
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "decode_attention.h"

namespace {

struct Index {
  int64_t row, head, token;
};
template <typename T>
T* find(const Rows& x, const Index& i) {
  return static_cast<T*>(x.data) + i.row * x.batch + i.head * x.head + i.token * x.token;
}

// Calls function(pointer) with the address of a row, in its type.
template <typename Function>
void with_row(const Rows& x, DecodeDtype type, const Index& i, const Function& function) {
  if (type == DECODE_FLOAT32) function(find<float>(x, i));
  if (type == DECODE_FLOAT16) function(find<c10::Half>(x, i));
  if (type == DECODE_BFLOAT16) function(find<c10::BFloat16>(x, i));
  if (type == DECODE_INT8) function(find<int8_t>(x, i));
}
void read(std::vector<float>& to, const Rows& x, DecodeDtype type, const Index& i) {
  with_row(x, type, i, [&](const auto* from) { std::copy_n(from, to.size(), to.begin()); });
}
void write(const std::vector<float>& from, const Rows& x, DecodeDtype type, const Index& i) {
  with_row(x, type, i, [&](auto* to) { std::copy(from.begin(), from.end(), to); });
}

float dot(const std::vector<float>& a, const std::vector<float>& b) {
  float sums[16] = {};  // one sum would have to be added in order
  for (size_t i = 0; i < a.size(); i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
  }
  return std::accumulate(sums, sums + 16, 0.f);
}

// All query heads of one key head: out = softmax(q keys^T scale) values.
void attend(const AttendCall& p, int64_t row, int64_t key_head) {
  using Matrix = std::vector<std::vector<float>>;
  const int group = p.heads / p.key_heads, length = std::clamp(p.lengths[row], 0, p.capacity);
  std::vector<float> x(p.d);
  Matrix q(group, x), sums(group, x), weights(group, std::vector<float>(length));
  for (int n = 0; n < group; ++n) read(q[n], p.q, p.dtype, {row, key_head * group + n, 0});
  for (int token = 0; token < length; ++token) {
    read(x, p.keys, p.cached, {row, key_head, token});
    const float scale = p.key_scale.data ? *find<float>(p.key_scale, {row, key_head, token}) : 1;
    for (int n = 0; n < group; ++n) weights[n][token] = dot(q[n], x) * p.scale * scale;
  }
  for (std::vector<float>& of : weights) {
    double total = 0;
    const float max = length ? *std::max_element(of.begin(), of.end()) : 0;
    for (float& w : of) total += w = std::exp(w - max);
    for (float& w : of) w /= static_cast<float>(total);
  }
  for (int token = 0; token < length; ++token) {
    read(x, p.values, p.cached, {row, key_head, token});
    const float scale =
        p.value_scale.data ? *find<float>(p.value_scale, {row, key_head, token}) : 1;
    for (int n = 0; n < group; ++n) {
      const float weight = weights[n][token] * scale;
      for (int i = 0; i < p.d; ++i) sums[n][i] += weight * x[i];
    }
  }
  for (int n = 0; n < group; ++n) write(sums[n], p.out, p.dtype, {row, key_head * group + n, 0});
}

// Makes codes of x, and returns their scale. Without a finite scale the codes are 0.
float quantize(std::vector<float>& x) {
  float most = 0;
  for (const float a : x) most = std::isfinite(a) ? std::max(most, std::abs(a)) : INFINITY;
  const float factor = most < kTiny ? 0 : kMostCode / most;
  for (float& a : x) a = std::isfinite(a) ? std::nearbyint(a * factor) : 0;
  return most < kTiny ? 0 : most / kMostCode;
}

// All heads of one token.
void append(const AppendCall& p, int64_t row, int64_t token) {
  const int half = p.d / 2;
  const int64_t position = int64_t{p.lengths[row]} + token;
  const bool is_valid = (p.counts == nullptr || token < p.counts[row]) && position >= 0;
  const bool has_angle = is_valid && position < p.positions;  // otherwise q is 0, k has no place
  std::vector<float> x(p.d);
  for (int n = 0; n < p.heads + 2 * p.key_heads; ++n) {
    const bool is_q = n < p.heads, is_k = !is_q && n < p.heads + p.key_heads;
    const int head = is_q ? n : (n - p.heads) % p.key_heads;
    read(x, is_q ? p.q : is_k ? p.k : p.v, p.dtype, {row, head, token});
    for (int i = 0; i < half && (is_q || is_k); ++i) {
      const float cos = has_angle ? p.cos[position * half + i] : 0, low = x[i];
      const float sin = has_angle ? p.sin[position * half + i] : 0, high = x[i + half];
      x[i] = has_angle ? low * cos - high * sin : 0;
      x[i + half] = has_angle ? high * cos + low * sin : 0;
    }
    if (is_q) {
      write(x, p.out, p.dtype, {row, head, token});
    } else if (is_valid && position < p.capacity) {
      if (p.cached == DECODE_INT8)
        *find<float>(is_k ? p.key_scale : p.value_scale, {row, head, position}) = quantize(x);
      write(x, is_k ? p.keys : p.values, p.cached, {row, head, position});
    }
  }
}

}  // namespace

void run_on_cpu(const AttendCall& p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) attend(p, i / p.key_heads, i % p.key_heads);
}
void run_on_cpu(const AppendCall& p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) append(p, i / p.tokens, i % p.tokens);
}
