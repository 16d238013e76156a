// The products of few_rows.cuh: one group of 128 columns, up to kStrips strips of 16 rows of W,
// kTilesOfX tiles of 8 rows of x.
#pragma once
#include "codes.cuh"

namespace four_bit {

// Bytes in a stage: what a warp moves by 16 bytes per lane, which is a strip's codes of 64 columns,
// or 8 rows and 32 columns of x; a strip's scales, and its zeros.
constexpr int kWarpBytes = 32 * 16, kScaleBytes = kTile * 2, kZeroBytes = kTile;

// Where columns 8 t to 8 t + 7 of row g of an 8 x 32 tile of x lie, in 16 bytes, so that neither
// the copies nor ldmatrix meet a bank twice.
__device__ inline int place_of_x(int g, int t) { return g * 4 + (t ^ g / 2); }

// Where a lane finds its part of a stage, in shared memory.
struct StageAddresses {
  uint32_t codes, x, scale, zero;
};

// A lane's accumulators, as mma leaves them: [0] and [1] belong to the even row of W, [2] and [3]
// to the odd one.
template <typename S>
using Accumulators = float[S::kStrips][S::kTilesOfX][4];

// One group for few rows of x: (code - zero) * scale is taken apart. With b for the base,
//   sum (code - zero) * x = sum (b + code) * x - (b + zero) * sum x,
// and both sums come from tensor cores, in float32; the scale is applied to their difference. If x
// is infinite, or so large that a sum is, that difference is not finite: then the block starts
// again with group_of_many.
template <typename T, typename S, int kCount>
__device__ inline void group_of_few(Accumulators<S>& sums, const StageAddresses& at) {
  constexpr int kStrips = S::kStrips, kTilesOfX = S::kTilesOfX;
  const uint32_t ones[4] = {Half<T>::kOnes, Half<T>::kOnes, Half<T>::kOnes, Half<T>::kOnes};
  Words x[kTilesOfX][4];
  float sum_x[kTilesOfX][4] = {};
#pragma unroll
  for (int i = 0; i < kTilesOfX; ++i) {
    for (int j = 0; j < 4; ++j) {
      ldmatrix(x[i][j].at, at.x + (i * 4 + j) * kWarpBytes);
      mma<T>(sum_x[i], ones, x[i][j].at[0], x[i][j].at[1]);
      mma<T>(sum_x[i], ones, x[i][j].at[2], x[i][j].at[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    float part[kTilesOfX][4] = {};
    const Words codes[2] = {load_shared<Words>(at.codes + r * kWarpBytes),
                            load_shared<Words>(at.codes + (kStrips + r) * kWarpBytes)};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t a[4];
      for (int i = 0; i < 4; ++i) a[i] = two_codes<T>(codes[j / 4].at[j % 4], i);
      for (int i = 0; i < kTilesOfX; ++i)
        mma<T>(part[i], a, x[i][j / 2].at[j % 2 * 2], x[i][j / 2].at[j % 2 * 2 + 1]);
    }
    const float2 scale = Half<T>::floats(
        bits<typename Half<T>::Pair>(load_shared<uint32_t>(at.scale + r * kScaleBytes)));
    const uint32_t zero = load_shared<uint16_t>(at.zero + r * kZeroBytes);
    const float base_zero[2] = {base_plus<T>(zero & 0xff), base_plus<T>(zero >> 8)};
    for (int i = 0; i < kTilesOfX; ++i) {
      for (int q = 0; q < 4; ++q)
        sums[r][i][q] +=
            (q < 2 ? scale.x : scale.y) * (part[i][q] - base_zero[q / 2] * sum_x[i][q]);
    }
  }
}

// One group for many rows of x: there each fragment of W serves many products, so it is cheaper to
// turn it into (code - zero) * scale first, and no second set of sums has to fit into registers.
template <typename T, typename S, int kCount>
__device__ inline void group_of_many(Accumulators<S>& sums, const StageAddresses& at) {
  constexpr int kStrips = S::kStrips, kTilesOfX = S::kTilesOfX;
  Affine<T> affine[kStrips][2];  // of the even and the odd row
  for (int r = 0; r < kCount; ++r) {
    const uint32_t two = load_shared<uint32_t>(at.scale + r * kScaleBytes),
                   zeros = load_shared<uint16_t>(at.zero + r * kZeroBytes);
    affine[r][0] = Affine<T>(__byte_perm(two, 0, kLowerTwice), zeros & 0xff);
    affine[r][1] = Affine<T>(__byte_perm(two, 0, kUpperTwice), zeros >> 8);
  }
  // Kept small: for up to 16 rows of x this is the rare second try.
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    Words x[kTilesOfX][2];
    for (int i = 0; i < kTilesOfX; ++i)
      for (int j = 0; j < 2; ++j) ldmatrix(x[i][j].at, at.x + (i * 4 + half * 2 + j) * kWarpBytes);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const Words codes = load_shared<Words>(at.codes + (half * kStrips + r) * kWarpBytes);
      for (int j = 0; j < 4; ++j) {
        uint32_t a[4];
        for (int i = 0; i < 4; ++i) a[i] = affine[r][i % 2].weights(two_codes<T>(codes.at[j], i));
        for (int i = 0; i < kTilesOfX; ++i)
          mma<T>(sums[r][i], a, x[i][j / 2].at[j % 2 * 2], x[i][j / 2].at[j % 2 * 2 + 1]);
      }
    }
  }
}

// Each number of strips that a warp may have has code of its own.
template <typename T, typename S, int kCount = S::kStrips>
__device__ inline void group_of(Accumulators<S>& sums, const StageAddresses& at, int strips) {
  if constexpr (kCount > 0) {
    if (strips < kCount) return group_of<T, S, kCount - 1>(sums, at, strips);
    if constexpr (S::kIsConvertedFirst)
      group_of_many<T, S, kCount>(sums, at);
    else
      group_of_few<T, S, kCount>(sums, at);
  }
}

}  // namespace four_bit
