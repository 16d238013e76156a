// How a warp consumes one tile of tokens: scores, weights, and the sum of weighted values. A
// function for each stage, over what a lane holds. What only int8 needs is in int8.cuh.
#pragma once
#include <float.h>

#include "int8.cuh"

namespace decode {

// The maximum of scores before the first one, and where all are -infinity. Those get the weight
// 2^(-inf - lowest) = 0; from a maximum of -infinity it would be NaN, and so all that is added.
constexpr float kLowest = -FLT_MAX;
constexpr float kLag = 8;  // how far a score may exceed the maximum: weights are at most 2^8
constexpr float kLog2OfE = 1.4426950408889634f;

// What a lane holds from tile to tile. Of each tile of 8 heads it serves two columns of the
// products: the heads lane_pair ([0]) and lane_pair + 4 ([1]).
template <typename S>
struct Lane {
  uint32_t q[S::kHeadTiles][S::kColumns / 8];  // fragments of Q^T, the right factor
  float scale[S::kHeadTiles][2];               // of scores
  float maximum[S::kHeadTiles][2];
  float sum[S::kHeadTiles][2] = {};             // of the weights of this lane's tokens
  float out[S::kSteps][S::kHeadTiles][4] = {};  // accumulators of O^T: of weight * value
};

// Column c of a tile of 8 heads is head c / 2 + c % 2 * 4, so that with up to 4 heads [0] has all.
template <typename S>
__device__ inline void load_query(Lane<S>& my, const AttendCall& p, const Work& work) {
  for (int n = 0; n < S::kHeadTiles; ++n) {
    const int head = n * 8 + work.lane_row % 2 * 4 + work.lane_row / 2;
    const auto* const from =
        work.query<typename S::Query>(p, head) + work.lane_pair * (S::is_int8 ? 4 : 2);
    for (int i = 0; i < S::kColumns / 8; i += 2) {
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
__device__ inline void prepare_query(Lane<S>& my, float scale, float maximum, int lane_pair) {
#pragma unroll
  for (int n = 0; n < S::kHeadTiles; ++n) {
    float factor = scale * kLog2OfE;  // for exp2 instead of exp
    if constexpr (S::is_int8) factor *= split_bytes<typename S::Query>(my.q[n]);
    // The lanes of row c loaded column c of the heads, of which this lane has 2 lane_pair + i.
    for (int i = 0; i < 2; ++i) my.scale[n][i] = __shfl_sync(~0u, factor, (2 * lane_pair + i) * 4);
    my.maximum[n][0] = my.maximum[n][1] = maximum;
  }
}

// What a lane holds of one tile: of the tokens lane_row, lane_row + 8, ...
template <typename S>
struct Fragments {
  static constexpr int kTokens = S::kTileTokens / 8;  // of this lane
  int left;                                           // tokens of this tile that count
  uint32_t loaded[S::kTokenTiles][S::kLoads][4];      // K, then V^T: left factors, as they lie
  uint32_t values[S::kSteps][4];                      // V^T for 16 tokens, as mma.sync takes it
  float score[S::kHeadTiles][2 * kTokens];            // S^T: of token i in [2 i] and [2 i + 1]
  Scales<S> scales;
};

// Loads K, or V^T if transposed: the rows of a stage that start at the address `rows`.
template <bool kTransposed, typename S>
__device__ inline void load_rows(Fragments<S>& tile, uint32_t rows, int lane) {
  for (int b = 0; b < S::kTokenTiles; ++b) {
    for (int i = 0; i < S::kLoads; ++i) {
      const int piece = b * 16 * S::kPieces + S::swizzled(lane % 16, i * 2 | lane / 16);
      ldmatrix<kTransposed>(tile.loaded[b][i], rows + piece * 16);
    }
  }
}

// S^T = K Q^T. Two sums, of even and odd steps; or, with int8, of high and low bytes.
template <typename S>
__device__ inline void multiply_keys(Fragments<S>& tile, const Lane<S>& my) {
  for (int b = 0; b < S::kTokenTiles; ++b) {
    for (int n = 0; n < S::kHeadTiles; ++n) {
      std::conditional_t<S::is_int8, int, float> sum[2][4] = {};
      for (int i = 0; i < S::kSteps; ++i) {
        const int at = S::is_int8 ? i / 2 * 4 + i % 2 : i * 2;
        mma<typename S::Factor>(sum[i % 2], tile.loaded[b][i / S::kStepsPerLoad], my.q[n][at],
                                my.q[n][at + S::kStepsPerLoad]);
      }
      for (int i = 0; i < 4; ++i)
        tile.score[n][4 * b + i] = sum[0][i] * (S::is_int8 ? 256 : 1) + sum[1][i];
    }
  }
}

// Values past the length become 0: a weight of 0 does not help against NaN. (int8 has none.)
template <typename S>
__device__ inline void clear_values(char* stage, int left, int lane) {
  if (S::is_int8 || left >= S::kTileTokens) return;
  uint4* values = reinterpret_cast<uint4*>(stage + S::kTileBytes);
#pragma unroll 1
  for (int i = left * S::kPieces + lane; i < S::kTileTokens * S::kPieces; i += 32) values[i] = {};
  __syncwarp();
}

// Makes fragments of V^T of what was loaded of the b-th 16 tokens.
template <typename S>
__device__ inline void convert_values(Fragments<S>& tile, int b) {
  for (int i = 0; i < S::kSteps; ++i) {
    const uint32_t (&loaded)[4] = tile.loaded[b][i / S::kStepsPerLoad];
    if constexpr (S::is_int8) {
      convert_values_of_8_bits(tile.values[i], loaded, i);
    } else {  // block 1 of the rows is tokens 8 to 15: in the transposed factor, on the right, 2
      tile.values[i][0] = loaded[0];
      tile.values[i][1] = loaded[2];
      tile.values[i][2] = loaded[1];
      tile.values[i][3] = loaded[3];
    }
  }
}

// Scales the scores. Returns whether one exceeds its head's maximum by so much that it must follow:
// that is rare, and costs a vote instead of shuffles.
template <typename S>
__device__ inline bool scale_scores(Fragments<S>& tile, const Lane<S>& my, int lane_row) {
  constexpr int kNext = S::kHeadsPerLane == 1 ? 2 : 1;  // passes over the repeated heads
  bool grows = false;
  for (int n = 0; n < S::kHeadTiles; ++n) {
    for (int i = 0; i < 2 * tile.kTokens; i += kNext) {
      float& score = tile.score[n][i];
      score *= my.scale[n][i % 2] * tile.scales.of_key[i / 2];
      if (lane_row + i / 2 * 8 >= tile.left) score = -INFINITY;
      grows |= score + tile.scales.bonus[i / 2] > my.maximum[n][i % 2] + kLag;
    }
  }
  return __any_sync(~0u, grows);
}

template <typename S>
__device__ inline void raise_maximum(Lane<S>& my, const Fragments<S>& tile) {
  for (int n = 0; n < S::kHeadTiles; ++n) {
    for (int i = 0; i < S::kHeadsPerLane; ++i) {
      float most = my.maximum[n][i];
      for (int j = 0; j < tile.kTokens; ++j)
        most = fmaxf(most, tile.score[n][2 * j + i] + tile.scales.bonus[j]);
      for (int j = 4; j < 32; j *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, j));
      const float factor = exp_2(my.maximum[n][i] - most);
      my.maximum[n][i] = most;
      my.sum[n][i] *= factor;
      for (int j = 0; j < S::kSteps; ++j) {
        my.out[j][n][i] *= factor;
        my.out[j][n][i + 2] *= factor;
      }
    }
  }
}

// O^T += V^T P, with weights of 2^(score - maximum) in P.
template <typename S>
__device__ inline void multiply_values(Lane<S>& my, Fragments<S>& tile) {
  using F = typename S::Factor;
  uint32_t weights[S::kHeadTiles][tile.kTokens];
  for (int n = 0; n < S::kHeadTiles; ++n) {
    for (int i = 0; i < tile.kTokens; ++i) {
      float weight[2] = {};
      for (int j = 0; j < S::kHeadsPerLane; ++j) {
        weight[j] = exp_2(tile.score[n][2 * i + j] - my.maximum[n][j]);
        my.sum[n][j] += weight[j];
        weight[j] *= tile.scales.of_value[i];
      }
      weights[n][i] = movmatrix(pack<F>(weight[0], weight[1]));
    }
  }
  for (int b = 0; b < S::kTokenTiles; ++b) {
    if (b > 0) convert_values(tile, b);
    for (int i = 0; i < S::kSteps; ++i)
      for (int n = 0; n < S::kHeadTiles; ++n)
        mma<F>(my.out[i][n], tile.values[i], weights[n][2 * b], weights[n][2 * b + 1]);
  }
}

}  // namespace decode
