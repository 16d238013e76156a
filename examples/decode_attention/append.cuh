// Rotates q and k by their positions, and writes k and v into the cache. The inputs may be slices
// of one qkv tensor, so each has strides of its own. docs/13_decode_attention.md explains it.
#pragma once
#include "attend.cuh"

namespace decode {

// Eight neighbours as floats. Without alignment one by one: slow, but right.
template <typename T>
__device__ inline void read_8(float (&x)[8], const T* from, bool is_aligned) {
  if (is_aligned) {
    const uint4 found = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[4] = {found.x, found.y, found.z, found.w};
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack<T>(words[i]);
      x[2 * i] = two.x;
      x[2 * i + 1] = two.y;
    }
  } else {
    for (int i = 0; i < 8; ++i) x[i] = unpack<T>(reinterpret_cast<const uint16_t*>(from)[i]).x;
  }
}
template <typename T>
__device__ inline void write_8(T* to, const float (&x)[8], bool is_aligned) {
  constexpr int kWords = 2 * sizeof(T);
  alignas(16) uint32_t words[kWords] = {};
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, int8_t>) {
      const uint32_t x0 = __float2int_rn(x[2 * i]) & 0xff, x1 = __float2int_rn(x[2 * i + 1]) & 0xff;
      words[i / 2] |= (x0 | x1 << 8) << i % 2 * 16;
    } else {
      words[i] = pack<T>(x[2 * i], x[2 * i + 1]);
    }
  }
  if (is_aligned) {
    using Vector = std::conditional_t<sizeof(T) == 1, uint2, uint4>;
    *reinterpret_cast<Vector*>(to) = *reinterpret_cast<const Vector*>(words);
  } else {
    for (int i = 0; i < 8; ++i) to[i] = reinterpret_cast<const T*>(words)[i];
  }
}

constexpr int kAppendThreads = 64;

// D / 16 lanes for one row of d elements, eight of each half: rotation mixes i and i + d / 2.
// blockIdx.x: the token in the batch; blockIdx.y: some of its heads of q, k, v.
template <typename T, bool kInt8, int D>
__global__ void __launch_bounds__(kAppendThreads) append(const __grid_constant__ AppendCall p) {
  using Cached = std::conditional_t<kInt8, int8_t, T>;
  constexpr int kLanes = D / 16, kHalf = D / 2;
  const int lane = threadIdx.x % kLanes, token = blockIdx.x % p.tokens, row = blockIdx.x / p.tokens;
  const int rows = p.heads + 2 * p.key_heads;
  const int found = blockIdx.y * (kAppendThreads / kLanes) + threadIdx.x / kLanes;
  const bool is_row = found < rows, is_q = found < p.heads, is_k = found < p.heads + p.key_heads;
  const int at =
      is_row ? found : rows - 1;  // others repeat the last one: all take part in shuffles
  const Rows& input = is_q ? p.q : is_k ? p.k : p.v;
  const int head = is_q ? at : is_k ? at - p.heads : at - p.heads - p.key_heads;
  start_next_and_wait();
  const int64_t position = static_cast<int64_t>(p.lengths[row]) + token;
  const bool is_valid = p.counts == nullptr || token < p.counts[row];
  const T* from = static_cast<const T*>(input.data) + row * input.batch + head * input.head +
                  token * input.token + lane * 8;
  float low[8], high[8];
  read_8(low, from, p.is_aligned);
  read_8(high, from + kHalf, p.is_aligned);

  if (is_k) {  // q, too
    // There is no angle past the table: such a q is 0, and k has no place there.
    const bool has_angle = is_valid && position >= 0 && position < p.positions;
    const int64_t angle = (has_angle ? position : 0) * kHalf + lane * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float cos = p.cos[angle + i], sin = p.sin[angle + i], x = low[i], y = high[i];
      low[i] = has_angle ? x * cos - y * sin : 0;
      high[i] = has_angle ? y * cos + x * sin : 0;
    }
  }
  if (is_q) {
    const int64_t token_of_all = (static_cast<int64_t>(row) * p.heads + head) * p.tokens + token;
    T* to = static_cast<T*>(p.out) + token_of_all * D + lane * 8;
    write_8(to, low, true);
    write_8(to + kHalf, high, true);
  }
  const bool is_written = is_row && !is_q && is_valid && position >= 0 && position < p.capacity;
  if constexpr (kInt8) {
    uint32_t largest = 0;  // as bits of a float without sign: there NaN is the largest
    for (int i = 0; i < 8; ++i) {
      largest = max(largest, __float_as_uint(low[i]) & 0x7fffffff);
      largest = max(largest, __float_as_uint(high[i]) & 0x7fffffff);
    }
    for (int i = 1; i < kLanes; i *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, i));
    const float most = __uint_as_float(largest);
    const bool is_zero = most < 1e-36f;  // 127 / most would be infinity
    const float factor = is_zero ? 0 : 127 / most;
    for (int i = 0; i < 8; ++i) {
      low[i] *= factor;
      high[i] *= factor;
    }
    const Rows& scales = is_k ? p.key_scale : p.value_scale;
    if (is_written && lane == 0) {
      static_cast<float*>(
          scales.data)[row * scales.batch + head * scales.head + position * scales.token] =
          is_zero ? 0 : most / 127;
    }
  }
  if (is_written) {
    const Rows& cache = is_k ? p.keys : p.values;
    Cached* to = static_cast<Cached*>(cache.data) + row * cache.batch + head * cache.head +
                 position * cache.token + lane * 8;
    write_8(to, low, p.is_aligned);
    write_8(to + kHalf, high, p.is_aligned);
  }
}

}  // namespace decode
