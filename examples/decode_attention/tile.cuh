// How attend() computes with one tile of tokens: scores, weights, and the sum of weighted values.
// A function for each stage, over what a lane holds.
#pragma once
#include <float.h>

#include "copies.cuh"

namespace decode {

// Converts two bytes, x + 128 each, to halves exactly: 0x6400 + n is the half 1024 + n.
__device__ inline uint32_t two_halves(uint32_t word, uint32_t which) {
  const uint32_t both = __byte_perm(word, 0x64646464, which);
  return bits<uint32_t>(__hsub2(bits<__half2>(both), bits<__half2>(0x64806480)));
}
// Makes a factor of values for mma.sync. 16 bytes hold 8 elements, or 16 of int8: there the even
// ones replace the first 8 and the odd ones the last 8.
template <typename S>
__device__ inline void factor_of(uint32_t (&x)[4], const uint32_t (&loaded)[4], int step) {
  for (int i = 0; i < 2; ++i) {
    const uint32_t word = loaded[S::is_int8 ? step % 2 * 2 + i : i];
    x[2 * i] = S::is_int8 ? two_halves(word ^ 0x80808080, 0x4240) : word;
    x[2 * i + 1] = S::is_int8 ? two_halves(word ^ 0x80808080, 0x4341) : loaded[i + 2];
  }
}
// Makes factors of q for tensor cores that multiply bytes: integers below 2^14, times the result.
// Two words, four elements, become the high bytes and the low ones, which have a sign.
template <typename T, int kWords>
__device__ inline float split_bytes(uint32_t (&q)[kWords]) {
  uint32_t largest = 0;  // as bits of a float without sign: there NaN is the largest
  for (uint32_t word : q) {
    const float2 two = unpack<T>(word);
    largest = max(largest, max(__float_as_uint(two.x) * 2, __float_as_uint(two.y) * 2));
  }
  for (int i = 1; i < 4; i *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, i));
  const uint32_t exponent = max(largest >> 24, 13);
  const float factor = __uint_as_float((267 - exponent) << 23);
  const auto bytes_of =
      [&](uint32_t word) {  // such a sum is rounded to an integer, in its low bits
        const float2 two = unpack<T>(word);
        return __byte_perm(__float_as_uint(fmaf(two.x, factor, 0x1.8p23f + 128)),
                           __float_as_uint(fmaf(two.y, factor, 0x1.8p23f + 128)), 0x5140);
      };
  for (int i = 0; i < kWords; i += 2) {
    const uint32_t x = bytes_of(q[i]), y = bytes_of(q[i + 1]);
    q[i] = __byte_perm(x, y, 0x7632);
    q[i + 1] = __byte_perm(x, y, 0x5410) ^ 0x80808080;
  }
  return exponent == 255 ? NAN : __uint_as_float((exponent - 13) << 23);
}

// The maximum of scores before the first one, and where all are -infinity. Those get the weight
// 2^(-inf - lowest) = 0; from a maximum of -infinity it would be NaN, and so all that is added.
constexpr float kLowest = -FLT_MAX;

// What a lane holds from tile to tile, of the heads t (0) and t + 4 (1) of each eight.
template <typename S>
struct Lane {
  uint32_t q[S::NT][S::D / 8];  // fragments: the columns 2 t and 2 t + 1 are the heads t and t + 4
  float scale[S::NT][2];        // of scores
  float max[S::NT][2], weight[S::NT][2] = {};
  float sums[S::kSteps][S::NT][4] = {};  // of weight * value
};

template <typename S>
__device__ inline void load_query(Lane<S>& my, const AttendCall& p, const Place& at) {
  for (int n = 0; n < S::NT; ++n) {
    const auto* const from = at.query<typename S::Query>(p, n * 8 + at.g % 2 * 4 + at.g / 2) +
                             at.t * (S::is_int8 ? 4 : 2);
    for (int i = 0; i < S::D / 8; i += 2) {
      if constexpr (S::is_int8) {
        const uint2 found = *reinterpret_cast<const uint2*>(from + i * 8);
        my.q[n][i] = found.x;
        my.q[n][i + 1] = found.y;
      } else {
        my.q[n][i] = *reinterpret_cast<const uint32_t*>(from + i * 8);
        my.q[n][i + 1] = *reinterpret_cast<const uint32_t*>(from + i * 8 + 8);
      }
    }
  }
}

// maximum: kLowest; or -infinity for a warp that gets no tokens.
template <typename S>
__device__ inline void prepare_query(Lane<S>& my, float scale, float maximum, int t) {
#pragma unroll
  for (int n = 0; n < S::NT; ++n) {
    float factor = scale * 1.4426950408889634f;  // for exp2 instead of exp
    if constexpr (S::is_int8) factor *= split_bytes<typename S::Query>(my.q[n]);
    for (int i = 0; i < 2; ++i) my.scale[n][i] = __shfl_sync(~0u, factor, (2 * t + i) * 4);
    my.max[n][0] = my.max[n][1] = maximum;
  }
}

// What a lane holds of one tile: of the tokens g, g + 8, ...
template <typename S>
struct Tile {
  static constexpr int kRows = S::kTokens / 8;
  int left;                                   // tokens of this tile that count
  uint32_t loaded[S::kBlocks][S::kLoads][4];  // first keys, then values
  uint32_t factor[S::kSteps][4];              // of values, for one block of 16 tokens
  float score[S::NT][2 * kRows];              // of the head t (even) and t + 4 (odd)
  // int8: the key's scale goes into the score, the value's into the weight, and its logarithm
  // (bonus) into what the maximum is taken of, so that weights fit into halves.
  float scale_of_key[kRows], scale_of_value[kRows], bonus[kRows];
};

template <bool kTransposed, typename S>
__device__ inline void load_rows(Tile<S>& tile, uint32_t rows, int lane) {
  for (int b = 0; b < S::kBlocks; ++b) {
    for (int i = 0; i < S::kLoads; ++i) {
      const int place = b * 16 * S::kChunks + S::place(lane % 16, i * 2 | lane / 16);
      load_matrices<kTransposed>(tile.loaded[b][i], rows + place * 16);
    }
  }
}

// score = K q. Two sums, of even and odd steps or of high and low bytes.
template <typename S>
__device__ inline void multiply_keys(Tile<S>& tile, const Lane<S>& my) {
  for (int b = 0; b < S::kBlocks; ++b) {
    for (int n = 0; n < S::NT; ++n) {
      std::conditional_t<S::is_int8, int, float> sum[2][4] = {};
      for (int i = 0; i < S::kSteps; ++i) {
        const int at = S::is_int8 ? i / 2 * 4 + i % 2 : i * 2;
        mma<typename S::Factor>(sum[i % 2], tile.loaded[b][i / S::kStepsOfLoad], my.q[n][at],
                                my.q[n][at + S::kStepsOfLoad]);
      }
      for (int i = 0; i < 4; ++i)
        tile.score[n][4 * b + i] = sum[0][i] * (S::is_int8 ? 256 : 1) + sum[1][i];
    }
  }
}

template <typename S>
__device__ inline void load_scales(Tile<S>& tile, const char* slot, int g) {
  const float* scales = reinterpret_cast<const float*>(slot + 2 * S::kTokens * S::kRow);
  for (int i = 0; i < tile.kRows; ++i) {
    const int token = g + 8 * i;
    tile.scale_of_key[i] = S::is_int8 ? scales[token] : 1;
    tile.scale_of_value[i] = S::is_int8 ? (token < tile.left ? scales[S::kTokens + token] : 0) : 1;
    // About log2: the bits of a float grow as its logarithm.
    const float size = fmaxf(fabsf(tile.scale_of_value[i]), 0x1p-64f);
    tile.bonus[i] = S::is_int8 ? __float_as_int(size) * 0x1p-23f - 127 : 0;
  }
}

// Values past the length become 0: a weight of 0 does not help against NaN. (int8 has none.)
template <typename S>
__device__ inline void clear_values(char* slot, int left, int lane) {
  if (S::is_int8 || left >= S::kTokens) return;
  uint4* values = reinterpret_cast<uint4*>(slot + S::kTokens * S::kRow);
#pragma unroll 1
  for (int i = left * S::kChunks + lane; i < S::kTokens * S::kChunks; i += 32) values[i] = {};
  __syncwarp();
}

template <typename S>
__device__ inline void convert_values(Tile<S>& tile, int b) {
  for (int i = 0; i < S::kSteps; ++i)
    factor_of<S>(tile.factor[i], tile.loaded[b][i / S::kStepsOfLoad], i);
}

// Scales the scores. Returns whether one exceeds its head's maximum by so much that it must follow:
// a weight may be up to 2^8, so that is rare, and costs a vote instead of shuffles.
template <typename S>
__device__ inline bool scale_scores(Tile<S>& tile, const Lane<S>& my, int g) {
  bool grows = false;
  for (int n = 0; n < S::NT; ++n) {
    for (int i = 0; i < 2 * tile.kRows; i += 3 - S::kOwn) {
      float& score = tile.score[n][i];
      score *= my.scale[n][i % 2] * tile.scale_of_key[i / 2];
      if (g + i / 2 * 8 >= tile.left) score = -INFINITY;
      grows |= score + tile.bonus[i / 2] > my.max[n][i % 2] + 8;
    }
  }
  return __any_sync(~0u, grows);
}

template <typename S>
__device__ inline void raise_maximum(Lane<S>& my, const Tile<S>& tile) {
  for (int n = 0; n < S::NT; ++n) {
    for (int i = 0; i < S::kOwn; ++i) {
      float most = my.max[n][i];
      for (int j = 0; j < tile.kRows; ++j)
        most = fmaxf(most, tile.score[n][2 * j + i] + tile.bonus[j]);
      for (int j = 4; j < 32; j *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, j));
      const float factor = exp_2(my.max[n][i] - most);
      my.max[n][i] = most;
      my.weight[n][i] *= factor;
      for (int j = 0; j < S::kSteps; ++j) {
        my.sums[j][n][i] *= factor;
        my.sums[j][n][i + 2] *= factor;
      }
    }
  }
}

// sums += V^T weights, with weight = 2^(score - maximum).
template <typename S>
__device__ inline void multiply_values(Lane<S>& my, Tile<S>& tile) {
  using F = typename S::Factor;
  uint32_t weights[S::NT][tile.kRows];
  for (int n = 0; n < S::NT; ++n) {
    for (int i = 0; i < tile.kRows; ++i) {
      float w[2] = {};
      for (int j = 0; j < S::kOwn; ++j) {
        w[j] = exp_2(tile.score[n][2 * i + j] - my.max[n][j]);
        my.weight[n][j] += w[j];
        w[j] *= tile.scale_of_value[i];
      }
      weights[n][i] = transpose(pack<F>(w[0], w[1]));
    }
  }
  for (int b = 0; b < S::kBlocks; ++b) {
    if (b > 0) convert_values(tile, b);
    for (int i = 0; i < S::kSteps; ++i)
      for (int n = 0; n < S::NT; ++n)
        mma<F>(my.sums[i][n], tile.factor[i], weights[n][2 * b], weights[n][2 * b + 1]);
  }
}

}  // namespace decode
