// What attend() needs for a cache of int8. Read it after tile.cuh: nothing here runs for 16 bits.
#pragma once
#include "shape.cuh"

namespace decode {

// __byte_perm(x, y, selector) makes a word of four of the bytes 0 to 3 (of x) and 4 to 7 (of y);
// the selector's last digit chooses the result's lowest byte.
constexpr uint32_t kEvenUnderFirst = 0x4240;  // bytes 0 and 2 of x, each below byte 0 of y
constexpr uint32_t kOddUnderFirst = 0x4341;   // bytes 1 and 3 of x, the same
constexpr uint32_t kLowPairs = 0x5140;        // byte 0 of x and of y, byte 1 of x and of y
constexpr uint32_t kLowHalves = 0x5410, kHighHalves = 0x7632;
constexpr uint32_t kFlipSigns = 0x80808080;  // xor: a byte x becomes x + 128 without a sign

// Converts two bytes, x + 128 each, to halves exactly: 0x6400 + n is the half 1024 + n.
__device__ inline uint32_t two_halves(uint32_t word, uint32_t which) {
  constexpr uint32_t kUpperBytes = 0x64646464, kMinus = 0x64806480;  // 1024 + 128, twice
  const uint32_t both = __byte_perm(word, kUpperBytes, which);
  return bits<uint32_t>(__hsub2(bits<__half2>(both), bits<__half2>(kMinus)));
}

// The fragment of values for one step of mma.sync, out of 16 bytes of each token, which are 16
// columns: there the even ones replace the first 8 and the odd ones the last 8.
__device__ inline void convert_values_of_8_bits(uint32_t (&to)[4], const uint32_t (&loaded)[4],
                                                int step) {
  for (int i = 0; i < 2; ++i) {
    const uint32_t word = loaded[step % 2 * 2 + i];
    to[2 * i] = two_halves(word ^ kFlipSigns, kEvenUnderFirst);
    to[2 * i + 1] = two_halves(word ^ kFlipSigns, kOddUnderFirst);
  }
}

// Makes fragments of q for tensor cores that multiply bytes: integers below 2^14, times the factor
// that is returned. Two words, four elements, become the high bytes and the low ones, which have a
// sign.
constexpr int kIntegerBits = 14;
constexpr int kBias = 127, kMantissaBits = 23, kNoNumber = 255;  // of a float's exponent
template <typename T, int kWords>
__device__ inline float split_bytes(uint32_t (&q)[kWords]) {
  uint32_t largest = 0;  // as bits of a float without sign: there NaN is the largest
  for (uint32_t word : q) {
    const float2 two = unpack<T>(word);
    largest = max(largest, max(__float_as_uint(two.x) * 2, __float_as_uint(two.y) * 2));
  }
  for (int i = 1; i < 4; i *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, i));
  constexpr int kShift = kIntegerBits - 1;  // from the largest number, 1.x * 2^e, to 1.x * 2^13
  const uint32_t exponent = max(largest >> (kMantissaBits + 1), kShift);
  const float factor = __uint_as_float((2 * kBias + kShift - exponent) << kMantissaBits);
  constexpr float kRoundToInteger = 0x1.8p23f;  // a sum with it has an integer in its low bits
  const auto bytes_of = [&](uint32_t word) {
    const float2 two = unpack<T>(word);
    return __byte_perm(__float_as_uint(fmaf(two.x, factor, kRoundToInteger + 128)),
                       __float_as_uint(fmaf(two.y, factor, kRoundToInteger + 128)), kLowPairs);
  };
  for (int i = 0; i < kWords; i += 2) {
    const uint32_t x = bytes_of(q[i]), y = bytes_of(q[i + 1]);
    q[i] = __byte_perm(x, y, kHighHalves);
    q[i + 1] = __byte_perm(x, y, kLowHalves) ^ kFlipSigns;
  }
  return exponent == kNoNumber ? NAN : __uint_as_float((exponent - kShift) << kMantissaBits);
}

// What the scales of a lane's tokens do: a key's goes into its score, a value's into its weight,
// and the value's logarithm (bonus) into what the maximum is taken of, so that weights fit into
// halves. A cache of 16 bits has no scales: there the compiler removes all this.
template <typename S>
struct Scales {
  static constexpr int kTokens = S::kTileTokens / 8;  // of this lane
  float of_key[kTokens], of_value[kTokens], bonus[kTokens];

  // Those of tokens row, row + 8, ..., of which the first `left` of the tile count.
  __device__ void load(const char* stage, int row, int left) {
    const float* scales = reinterpret_cast<const float*>(stage + 2 * S::kTileBytes);
    for (int i = 0; i < kTokens; ++i) {
      const int token = row + 8 * i;
      of_key[i] = S::is_int8 ? scales[token] : 1;
      of_value[i] = S::is_int8 ? (token < left ? scales[S::kTileTokens + token] : 0) : 1;
      // About log2: the bits of a float grow as its logarithm.
      const float size = fmaxf(fabsf(of_value[i]), 0x1p-64f);
      bonus[i] = S::is_int8 ? __float_as_int(size) * 0x1p-23f - kBias : 0;
    }
  }
};

}  // namespace decode
