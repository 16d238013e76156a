// attend() and append() on a CPU: the reference to read first. Inner loops go over d, and are
// dense, so the compiler vectorizes them.
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "decode_attention.h"

namespace {

using Numbers = std::array<float, 128>;  // one row; d may be 64, too

// Calls function(pointer) with the address of one row of x, in its type.
template <typename Function>
void with_row(const Rows& x, DecodeDtype type, int64_t row, int64_t head, int64_t token,
              const Function& function) {
  const int64_t at = row * x.batch + head * x.head + token * x.token;
  if (type == DECODE_FLOAT32) function(static_cast<float*>(x.data) + at);
  if (type == DECODE_FLOAT16) function(static_cast<c10::Half*>(x.data) + at);
  if (type == DECODE_BFLOAT16) function(static_cast<c10::BFloat16*>(x.data) + at);
  if (type == DECODE_INT8) function(static_cast<int8_t*>(x.data) + at);
}
Numbers read(const Rows& x, DecodeDtype type, int64_t row, int64_t head, int64_t token, int d) {
  Numbers to = {};
  with_row(x, type, row, head, token, [&](const auto* from) {
    for (int i = 0; i < d; ++i) to[i] = static_cast<float>(from[i]);
  });
  return to;
}
void write(const Numbers& from, const Rows& x, DecodeDtype type, int64_t row, int64_t head,
           int64_t token, int d) {
  with_row(x, type, row, head, token, [&](auto* to) {
    for (int i = 0; i < d; ++i)
      to[i] = static_cast<std::remove_reference_t<decltype(*to)>>(from[i]);
  });
}

// out = softmax(q keys^T scale) values, for one query head.
void attend(const AttendCall& p, int64_t row, int64_t head) {
  const int length = std::clamp(p.lengths[row], 0, p.capacity);
  const int64_t key_head = head / (p.heads / p.key_heads);
  const auto scale_of = [&](const Rows& x, int token) {
    return x.data ? read(x, DECODE_FLOAT32, row, key_head, token, 1)[0] : 1;
  };
  const Numbers q = read(p.q, p.dtype, row, head, 0, p.d);
  Numbers sum = {};
  std::vector<float> weights(length);
  for (int token = 0; token < length; ++token) {
    const Numbers key = read(p.keys, p.cached, row, key_head, token, p.d);
    float sums[16] = {};  // one sum would have to be added in order
    for (int i = 0; i < p.d; i += 16) {
      for (int j = 0; j < 16; ++j) sums[j] += q[i + j] * key[i + j];
    }
    for (const float x : sums) weights[token] += x;
    weights[token] *= p.scale * scale_of(p.key_scale, token);
  }
  const float max = length ? *std::max_element(weights.begin(), weights.end()) : 0;
  double total = 0;
  for (float& weight : weights) total += weight = std::exp(weight - max);
  for (int token = 0; token < length; ++token) {
    const Numbers value = read(p.values, p.cached, row, key_head, token, p.d);
    const auto weight = static_cast<float>(weights[token] / total * scale_of(p.value_scale, token));
    for (int i = 0; i < p.d; ++i) sum[i] += weight * value[i];
  }
  write(sum, p.out, p.dtype, row, head, 0, p.d);
}

// Makes codes of x, and returns their scale.
float quantize(Numbers& x) {
  float most = 0;
  for (const float a : x) most = std::isfinite(a) ? std::max(most, std::abs(a)) : INFINITY;
  const float factor = most < 1e-36f ? 0 : 127 / most;  // 127 / less would be infinity
  for (float& a : x) a = std::isfinite(a) ? std::nearbyint(a * factor) : 0;
  return most < 1e-36f ? 0 : most / 127;
}

// All heads of one token.
void append(const AppendCall& p, int64_t row, int64_t token) {
  const int64_t position = int64_t{p.lengths[row]} + token, half = p.d / 2;
  const bool is_valid = (p.counts == nullptr || token < p.counts[row]) && position >= 0;
  const bool has_angle = is_valid && position < p.positions;  // otherwise q is 0, k has no place
  for (int n = 0; n < p.heads + 2 * p.key_heads; ++n) {
    const bool is_q = n < p.heads, is_k = !is_q && n < p.heads + p.key_heads;
    const int head = is_q ? n : (n - p.heads) % p.key_heads;
    Numbers x = read(is_q ? p.q : is_k ? p.k : p.v, p.dtype, row, head, token, p.d);
    for (int i = 0; i < half && (is_q || is_k); ++i) {
      const float cos = has_angle ? p.cos[position * half + i] : 0, low = x[i];
      const float sin = has_angle ? p.sin[position * half + i] : 0, high = x[i + half];
      x[i] = has_angle ? low * cos - high * sin : 0;
      x[i + half] = has_angle ? high * cos + low * sin : 0;
    }
    if (is_q) {
      write(x, p.out, p.dtype, row, head, token, p.d);
    } else if (is_valid && position < p.capacity) {
      if (p.cached == DECODE_INT8) {
        const float scale = quantize(x);
        write({scale}, is_k ? p.key_scale : p.value_scale, DECODE_FLOAT32, row, head, position, 1);
      }
      write(x, is_k ? p.keys : p.values, p.cached, row, head, position, p.d);
    }
  }
}

}  // namespace

void run_on_cpu(const AttendCall& p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) attend(p, i / p.heads, i % p.heads);
}
void run_on_cpu(const AppendCall& p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) append(p, i / p.tokens, i % p.tokens);
}
