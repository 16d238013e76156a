// attend() and append() on a CPU: the reference to read first. Loops over d are the inner ones, and
// dense, so the compiler vectorizes them.
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "decode_attention.h"

namespace {

// Calls function(pointer) with the address of one row, in its type.
template <typename Function>
void with_row(const Rows& x, DecodeDtype type, int64_t row, int64_t head, int64_t token,
              const Function& function) {
  const int64_t at = row * x.batch + head * x.head + token * x.token;
  if (type == DECODE_FLOAT32) function(static_cast<float*>(x.data) + at);
  if (type == DECODE_FLOAT16) function(static_cast<c10::Half*>(x.data) + at);
  if (type == DECODE_BFLOAT16) function(static_cast<c10::BFloat16*>(x.data) + at);
  if (type == DECODE_INT8) function(static_cast<int8_t*>(x.data) + at);
}
void read(std::vector<float>& to, const Rows& x, DecodeDtype type, int64_t row, int64_t head,
          int64_t token) {
  with_row(x, type, row, head, token, [&](const auto* from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(from[i]);
  });
}
void write(const std::vector<float>& from, const Rows& x, DecodeDtype type, int64_t row,
           int64_t head, int64_t token) {
  with_row(x, type, row, head, token, [&](auto* to) {
    for (size_t i = 0; i < from.size(); ++i)
      to[i] = static_cast<std::remove_reference_t<decltype(*to)>>(from[i]);
  });
}
float& scale_of(const Rows& x, int64_t row, int64_t head, int64_t token) {
  return static_cast<float*>(x.data)[row * x.batch + head * x.head + token * x.token];
}

float dot(const std::vector<float>& a, const std::vector<float>& b) {
  float sums[16] = {};  // one sum would have to be added in order
  for (size_t i = 0; i < a.size(); i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (const float x : sums) sum += x;
  return sum;
}

// All query heads of one key head: out = softmax(q keys^T scale) values.
void attend(const AttendCall& p, int64_t row, int64_t key_head) {
  using Matrix = std::vector<std::vector<float>>;
  const int group = p.heads / p.key_heads, length = std::clamp(p.lengths[row], 0, p.capacity);
  std::vector<float> x(p.d);
  Matrix q(group, x), sums(group, x), weights(group, std::vector<float>(length));
  for (int n = 0; n < group; ++n) read(q[n], p.q, p.dtype, row, key_head * group + n, 0);
  for (int token = 0; token < length; ++token) {
    read(x, p.keys, p.cached, row, key_head, token);
    const float scale = p.key_scale.data ? scale_of(p.key_scale, row, key_head, token) : 1;
    for (int n = 0; n < group; ++n) weights[n][token] = dot(q[n], x) * p.scale * scale;
  }
  for (std::vector<float>& of : weights) {
    double total = 0;
    const float max = length ? *std::max_element(of.begin(), of.end()) : 0;
    for (float& w : of) total += w = std::exp(w - max);
    for (float& w : of) w /= static_cast<float>(total);
  }
  for (int token = 0; token < length; ++token) {
    read(x, p.values, p.cached, row, key_head, token);
    const float scale = p.value_scale.data ? scale_of(p.value_scale, row, key_head, token) : 1;
    for (int n = 0; n < group; ++n) {
      const float weight = weights[n][token] * scale;
      for (int i = 0; i < p.d; ++i) sums[n][i] += weight * x[i];
    }
  }
  for (int n = 0; n < group; ++n) write(sums[n], p.out, p.dtype, row, key_head * group + n, 0);
}

// Makes codes of x, and returns their scale. Without a finite scale the codes are 0.
float quantize(std::vector<float>& x) {
  float most = 0;
  for (const float a : x) most = std::isfinite(a) ? std::max(most, std::abs(a)) : INFINITY;
  const float factor = most < 1e-36f ? 0 : 127 / most;  // 127 / less would be infinity
  for (float& a : x) a = std::isfinite(a) ? std::nearbyint(a * factor) : 0;
  return most < 1e-36f ? 0 : most / 127;
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
    read(x, is_q ? p.q : is_k ? p.k : p.v, p.dtype, row, head, token);
    for (int i = 0; i < half && (is_q || is_k); ++i) {
      const float cos = has_angle ? p.cos[position * half + i] : 0, low = x[i];
      const float sin = has_angle ? p.sin[position * half + i] : 0, high = x[i + half];
      x[i] = has_angle ? low * cos - high * sin : 0;
      x[i + half] = has_angle ? high * cos + low * sin : 0;
    }
    if (is_q) {
      write(x, p.out, p.dtype, row, head, token);
    } else if (is_valid && position < p.capacity) {
      if (p.cached == DECODE_INT8)
        scale_of(is_k ? p.key_scale : p.value_scale, row, head, position) = quantize(x);
      write(x, is_k ? p.keys : p.values, p.cached, row, head, position);
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
