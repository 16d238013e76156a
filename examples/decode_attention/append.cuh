// Rotates q and k by their positions, and writes k and v into the cache. The inputs may be slices
// of one qkv tensor, so each has strides of its own. docs/17_decode_attention.md explains it.
#pragma once
#include "parts.cuh"

namespace decode {

template <typename T>
__device__ inline void read_8(float (&x)[8], const T* from) {
  const uint4 found = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {found.x, found.y, found.z, found.w};
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack<T>(words[i]);
    x[2 * i] = two.x;
    x[2 * i + 1] = two.y;
  }
}
template <typename T>
__device__ inline void write_8(T* to, const float (&x)[8]) {
  if constexpr (std::is_same_v<T, int8_t>) {
    uint32_t words[2] = {};
    for (int i = 0; i < 8; ++i) words[i / 4] |= (__float2int_rn(x[i]) & 0xff) << i % 4 * 8;
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  } else {
    *reinterpret_cast<uint4*>(to) = {pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]),
                                     pack<T>(x[6], x[7])};
  }
}

// Makes codes, not yet rounded, of a row whose numbers kLanes lanes hold. Returns their scale.
template <int kLanes>
__device__ inline float quantize(float (&low)[8], float (&high)[8]) {
  uint32_t largest = 0;  // as bits of a float without sign: there NaN is the largest
  for (int i = 0; i < 8; ++i) {
    largest = max(largest, __float_as_uint(low[i]) & 0x7fffffff);
    largest = max(largest, __float_as_uint(high[i]) & 0x7fffffff);
  }
  for (int i = 1; i < kLanes; i *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, i));
  const float most = __uint_as_float(largest);
  const bool is_zero = most < kTiny;
  const float factor = is_zero ? 0 : kMostCode / most;
  for (int i = 0; i < 8; ++i) {
    low[i] *= factor;
    high[i] *= factor;
  }
  return is_zero ? 0 : most / kMostCode;
}

constexpr int kAppendThreads = 64;

// d / 16 lanes for one row of d elements, eight of each half: rotation mixes i and i + d / 2.
// blockIdx.x: the token in the batch; blockIdx.y: some of its heads of q, k, v.
template <typename T, bool kInt8, int kColumns>
__global__ void __launch_bounds__(kAppendThreads) append(const __grid_constant__ AppendCall p) {
  constexpr int kLanes = kColumns / 16, kHalf = kColumns / 2;
  const int lane = threadIdx.x % kLanes, token = blockIdx.x % p.tokens, row = blockIdx.x / p.tokens;
  const int found = blockIdx.y * (kAppendThreads / kLanes) + threadIdx.x / kLanes;
  const int n = min(found, p.heads + 2 * p.key_heads - 1);  // some repeat the last: all shuffle
  const bool is_q = n < p.heads, is_k = !is_q && n < p.heads + p.key_heads;
  const int head = is_q ? n : (n - p.heads) % p.key_heads;
  const auto at = [&](const Rows& x, auto type, int64_t position) {
    return static_cast<decltype(type)*>(x.data) + row * x.batch + head * x.head +
           position * x.token;
  };
  launch_dependent_grids();
  wait_on_dependent_grids();
  const int64_t position = static_cast<int64_t>(p.lengths[row]) + token;
  const bool is_valid = (p.counts == nullptr || token < p.counts[row]) && position >= 0;
  const T* from = at(is_q ? p.q : is_k ? p.k : p.v, T(), token) + lane * 8;
  float low[8], high[8];
  read_8(low, from);
  read_8(high, from + kHalf);

  if (is_q || is_k) {
    // There is no angle past the table: such a q is 0, and k has no place there.
    const bool has_angle = is_valid && position < p.positions;
    const int64_t angle = (has_angle ? position : 0) * kHalf + lane * 8;
    for (int i = 0; i < 8; ++i) {
      const float cos = p.cos[angle + i], sin = p.sin[angle + i], x = low[i], y = high[i];
      low[i] = has_angle ? x * cos - y * sin : 0;
      high[i] = has_angle ? y * cos + x * sin : 0;
    }
  }
  if (is_q) {
    T* to = at(p.out, T(), token) + lane * 8;
    write_8(to, low);
    write_8(to + kHalf, high);
  }
  const bool is_written = n == found && !is_q && is_valid && position < p.capacity;
  if constexpr (kInt8) {
    const float scale = quantize<kLanes>(low, high);
    if (is_written && lane == 0) *at(is_k ? p.key_scale : p.value_scale, float(), position) = scale;
  }
  if (is_written) {
    using Cached = std::conditional_t<kInt8, int8_t, T>;
    Cached* to = at(is_k ? p.keys : p.values, Cached(), position) + lane * 8;
    write_8(to, low);
    write_8(to + kHalf, high);
  }
}

}  // namespace decode
