// The products of few_rows.cuh: one group of 128 columns, up to R pieces of 16 rows of W, NT * 8
// rows of x.
#pragma once
#include "codes.cuh"

namespace four_bit {

// Where columns 8 t to 8 t + 7 of row g of an 8 x 32 tile of x lie, so that neither the copies nor
// ldmatrix meet a bank twice.
__device__ inline int place_of_x(int g, int t) { return g * 4 + (t ^ g / 2); }

// Where a lane finds its part of a slot, in shared memory.
struct Places {
  uint32_t codes, x, scale, zero;
};

// One group for few rows of x: (code - zero) * scale is taken apart. With m for the magic number,
//   sum (code - zero) * x = sum (m + code) * x - (m + zero) * sum x,
// and both sums come from tensor cores, in float32; the scale is applied to their difference. If x
// is infinite, or so large that a sum is, that difference is not finite: then the block starts
// again with group_of_many.
template <typename T, typename S, int N>
__device__ inline void group_of_few(float (&sums)[S::R][S::NT][4], const Places& at) {
  constexpr int R = S::R, NT = S::NT;
  const uint32_t ones[4] = {Half<T>::kOnes, Half<T>::kOnes, Half<T>::kOnes, Half<T>::kOnes};
  Words x[NT][4];
  float sum_x[NT][4] = {};
#pragma unroll
  for (int i = 0; i < NT; ++i) {
    for (int j = 0; j < 4; ++j) {
      load_matrices(x[i][j].at, at.x + (i * 4 + j) * 512);
      mma<T>(sum_x[i], ones, x[i][j].at[0], x[i][j].at[1]);
      mma<T>(sum_x[i], ones, x[i][j].at[2], x[i][j].at[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < N; ++r) {
    float part[NT][4] = {};
    const Words codes[2] = {load_shared<Words>(at.codes + r * 512),
                            load_shared<Words>(at.codes + (R + r) * 512)};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t a[4];
      for (int i = 0; i < 4; ++i) a[i] = two_codes<T>(codes[j / 4].at[j % 4], i);
      for (int i = 0; i < NT; ++i)
        mma<T>(part[i], a, x[i][j / 2].at[j % 2 * 2], x[i][j / 2].at[j % 2 * 2 + 1]);
    }
    const float2 scale =
        Half<T>::floats(bits<typename Half<T>::Pair>(load_shared<uint32_t>(at.scale + r * 32)));
    const uint32_t zero = load_shared<uint16_t>(at.zero + r * 16);
    const float m_zero[2] = {magic_plus<T>(zero & 0xff), magic_plus<T>(zero >> 8)};
    for (int i = 0; i < NT; ++i) {
      for (int q = 0; q < 4; ++q)  // 0, 1: the even row of W; 2, 3: the odd one
        sums[r][i][q] += (q < 2 ? scale.x : scale.y) * (part[i][q] - m_zero[q / 2] * sum_x[i][q]);
    }
  }
}

// One group for many rows of x: there each fragment of W serves many products, so it is cheaper to
// turn it into (code - zero) * scale first, and no second set of sums has to fit into registers.
template <typename T, typename S, int N>
__device__ inline void group_of_many(float (&sums)[S::R][S::NT][4], const Places& at) {
  constexpr int R = S::R, NT = S::NT;
  Affine<T> affine[R][2];  // of the even and the odd row
  for (int r = 0; r < N; ++r) {
    const uint32_t two = load_shared<uint32_t>(at.scale + r * 32),
                   zeros = load_shared<uint16_t>(at.zero + r * 16);
    affine[r][0] = Affine<T>(__byte_perm(two, 0, 0x1010), zeros & 0xff);
    affine[r][1] = Affine<T>(__byte_perm(two, 0, 0x3232), zeros >> 8);
  }
  // Kept small: for up to 16 rows of x this is the rare second try.
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    Words x[NT][2];
    for (int i = 0; i < NT; ++i)
      for (int j = 0; j < 2; ++j) load_matrices(x[i][j].at, at.x + (i * 4 + half * 2 + j) * 512);
#pragma unroll
    for (int r = 0; r < N; ++r) {
      const Words codes = load_shared<Words>(at.codes + (half * R + r) * 512);
      for (int j = 0; j < 4; ++j) {
        uint32_t a[4];
        for (int i = 0; i < 4; ++i) a[i] = affine[r][i % 2].weights(two_codes<T>(codes.at[j], i));
        for (int i = 0; i < NT; ++i)
          mma<T>(sums[r][i], a, x[i][j / 2].at[j % 2 * 2], x[i][j / 2].at[j % 2 * 2 + 1]);
      }
    }
  }
}

// Each number of pieces that a warp may have has code of its own.
template <typename T, typename S, int N = S::R>
__device__ inline void group_of(float (&sums)[S::R][S::NT][4], const Places& at, int pieces) {
  if constexpr (N > 0) {
    if (pieces < N) return group_of<T, S, N - 1>(sums, at, pieces);
    if constexpr (S::NT > 2)
      group_of_many<T, S, N>(sums, at);
    else
      group_of_few<T, S, N>(sums, at);
  }
}

}  // namespace four_bit
