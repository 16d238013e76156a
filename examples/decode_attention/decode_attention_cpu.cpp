// attend() and append() on a CPU: the reference to read first. Loops over d are the inner ones, and
// dense, so the compiler vectorizes them.
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "decode_attention.h"

namespace {

template <typename T>
T* at(const Rows& x, int64_t row, int64_t head, int64_t token) {
  return static_cast<T*>(x.data) + row * x.batch + head * x.head + token * x.token;
}

float dot(const float* a, const float* b, int d) {
  float sums[16] = {};  // one sum would have to be added in order
  for (int i = 0; i < d; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (const float x : sums) sum += x;
  return sum;
}

// All query heads of one key head: out = softmax(q keys^T scale) values.
template <typename T, typename Cached>
void attend(const AttendCall& p, int64_t row, int64_t key_head) {
  const int d = p.d, group = p.heads / p.key_heads;
  const int length = std::clamp(p.lengths[row], 0, p.capacity);
  std::vector<float> q(group * d), sums(group * d), x(d), weights(int64_t{group} * length);
  for (int n = 0; n < group; ++n) {
    const T* from = at<T>(p.q, row, key_head * group + n, 0);
    for (int i = 0; i < d; ++i) q[n * d + i] = static_cast<float>(from[i]) * p.scale;
  }
  for (int64_t token = 0; token < length; ++token) {
    const Cached* key = at<Cached>(p.keys, row, key_head, token);
    const float scale = p.is_int8 ? *at<float>(p.key_scale, row, key_head, token) : 1;
    for (int i = 0; i < d; ++i) x[i] = static_cast<float>(key[i]);
    for (int n = 0; n < group; ++n)
      weights[n * int64_t{length} + token] = dot(&q[n * d], x.data(), d) * scale;
  }
  std::vector<float> totals(group);
  for (int n = 0; n < group && length > 0; ++n) {
    float* of = &weights[n * int64_t{length}];
    const float max = *std::max_element(of, of + length);
    double total = 0;
    for (int64_t i = 0; i < length; ++i) total += of[i] = std::exp(of[i] - max);
    totals[n] = static_cast<float>(total);
  }
  for (int64_t token = 0; token < length; ++token) {
    const Cached* value = at<Cached>(p.values, row, key_head, token);
    const float scale = p.is_int8 ? *at<float>(p.value_scale, row, key_head, token) : 1;
    for (int i = 0; i < d; ++i) x[i] = static_cast<float>(value[i]) * scale;
    for (int n = 0; n < group; ++n) {
      const float weight = weights[n * int64_t{length} + token] / totals[n];
      for (int i = 0; i < d; ++i) sums[n * d + i] += weight * x[i];
    }
  }
  T* out = static_cast<T*>(p.out) + (row * p.heads + key_head * group) * d;
  for (int i = 0; i < group * d; ++i) out[i] = static_cast<T>(sums[i]);
}

template <typename T, typename Cached>
void write(const AppendCall& p, bool is_key, const float* x, int64_t row, int64_t head,
           int64_t position) {
  Cached* to = at<Cached>(is_key ? p.keys : p.values, row, head, position);
  if constexpr (sizeof(Cached) > 1) {
    for (int i = 0; i < p.d; ++i) to[i] = static_cast<Cached>(x[i]);
  } else {
    float most = 0;
    for (int i = 0; i < p.d; ++i) most = std::abs(x[i]) <= most ? most : std::abs(x[i]);
    const bool is_zero = most < 1e-36f;  // 127 / most would be infinity
    const bool is_number = std::isfinite(most);
    for (int i = 0; i < p.d; ++i)
      to[i] = is_zero || !is_number ? 0 : static_cast<Cached>(std::nearbyint(x[i] * (127 / most)));
    *at<float>(is_key ? p.key_scale : p.value_scale, row, head, position) =
        is_zero ? 0 : most / 127;
  }
}

// All heads of one token.
template <typename T, typename Cached>
void append(const AppendCall& p, int64_t row, int64_t token) {
  const int d = p.d, half = d / 2;
  const int64_t position = int64_t{p.lengths[row]} + token;
  const bool is_valid = (p.counts == nullptr || token < p.counts[row]) && position >= 0;
  std::vector<float> x(d), turned(d);
  for (int n = 0; n < p.heads + 2 * p.key_heads; ++n) {
    const bool is_q = n < p.heads, is_k = !is_q && n < p.heads + p.key_heads;
    const int head = is_q ? n : is_k ? n - p.heads : n - p.heads - p.key_heads;
    const T* from = at<T>(is_q ? p.q : is_k ? p.k : p.v, row, head, token);
    for (int i = 0; i < d; ++i) turned[i] = x[i] = static_cast<float>(from[i]);
    if (is_q || is_k) {  // past the table there is no angle: such a q is 0, and k has no place
      const bool has_angle = is_valid && position < p.positions;
      const float* cos = p.cos + (has_angle ? position * half : 0);
      const float* sin = p.sin + (has_angle ? position * half : 0);
      for (int i = 0; i < half; ++i) {
        turned[i] = has_angle ? x[i] * cos[i] - x[i + half] * sin[i] : 0;
        turned[i + half] = has_angle ? x[i + half] * cos[i] + x[i] * sin[i] : 0;
      }
    }
    if (is_q) {
      T* to = static_cast<T*>(p.out) + ((row * p.heads + head) * p.tokens + token) * d;
      for (int i = 0; i < d; ++i) to[i] = static_cast<T>(turned[i]);
    } else if (is_valid && position < p.capacity) {
      write<T, Cached>(p, is_k, turned.data(), row, head, position);
    }
  }
}

template <typename T>
void run(const AttendCall& p, int64_t row, int64_t key_head) {
  p.is_int8 ? attend<T, int8_t>(p, row, key_head) : attend<T, T>(p, row, key_head);
}
template <typename T>
void run(const AppendCall& p, int64_t row, int64_t token) {
  p.is_int8 ? append<T, int8_t>(p, row, token) : append<T, T>(p, row, token);
}
template <typename Call>
void run_all(const Call& p, int64_t begin, int64_t end, int64_t each) {
  for (int64_t i = begin; i < end; ++i) {
    if (p.dtype == DECODE_FLOAT32) run<float>(p, i / each, i % each);
    if (p.dtype == DECODE_FLOAT16) run<c10::Half>(p, i / each, i % each);
    if (p.dtype == DECODE_BFLOAT16) run<c10::BFloat16>(p, i / each, i % each);
  }
}

}  // namespace

void attend_cpu(const AttendCall& p, int64_t begin, int64_t end) {
  run_all(p, begin, end, p.key_heads);
}
void append_cpu(const AppendCall& p, int64_t begin, int64_t end) {
  run_all(p, begin, end, p.tokens);
}
