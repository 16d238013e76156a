// The products of few_rows.cuh: one group of 128 columns, R tiles of 16 rows of W, NT * 8 rows of
// x.
#pragma once
#include "codes.cuh"

namespace four_bit {

// Where columns 8 t to 8 t + 7 of row g of an 8 x 32 tile of x lie, so that neither the copies nor
// ldmatrix meet a bank twice.
__device__ inline int place_of_x(int g, int t) { return g * 4 + (t ^ g / 2); }

// The fragments of two steps.
__device__ inline Words load_x(const Words (&tile)[32], int lane) {
  const Words* from = &tile[place_of_x(lane % 8, lane / 8)];
  Words x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.at[0]), "=r"(x.at[1]), "=r"(x.at[2]), "=r"(x.at[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))));
  return x;
}

// c += a * b. a: 16 x 16 of W, b: 16 x 8 of x. Not volatile, so that the compiler may interleave.
template <typename T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// One group for few rows of x: (code - zero) * scale is taken apart. With m for the magic number,
//   sum (code - zero) * x = sum (m + code) * x - (m + zero) * sum x,
// and both sums come from tensor cores, in float32; the scale is applied to their difference. If x
// is infinite, or so large that a sum is, that difference is NaN: then the block starts again with
// group_of_many.
template <typename T, typename S>
__device__ inline void group_of_few(float (&sums)[S::R][S::NT][4], const typename S::Slot& slot,
                                    int wr, int lane) {
  constexpr int R = S::R, NT = S::NT;
  const auto* scales = reinterpret_cast<const uint32_t*>(slot.affine[wr]) + lane / 4;
  const auto* zeros = reinterpret_cast<const uint16_t*>(slot.affine[wr] + 2 * R) + lane / 4;
  const uint32_t ones[4] = {Half<T>::kOnes, Half<T>::kOnes, Half<T>::kOnes, Half<T>::kOnes};
  Words x[NT][4];
  float sum_x[NT][4] = {};
#pragma unroll
  for (int i = 0; i < NT; ++i) {
    for (int j = 0; j < 4; ++j) {
      x[i][j] = load_x(slot.x[i][j], lane);
      multiply<T>(sum_x[i], ones, x[i][j].at[0], x[i][j].at[1]);
      multiply<T>(sum_x[i], ones, x[i][j].at[2], x[i][j].at[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    float part[NT][4] = {};
    const Words codes[2] = {slot.codes[wr][0][r][lane], slot.codes[wr][1][r][lane]};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t a[4];
      for (int i = 0; i < 4; ++i) a[i] = two_codes<T>(codes[j / 4].at[j % 4], i);
      for (int i = 0; i < NT; ++i)
        multiply<T>(part[i], a, x[i][j / 2].at[j % 2 * 2], x[i][j / 2].at[j % 2 * 2 + 1]);
    }
    const float2 scale = Half<T>::floats(bits<typename Half<T>::Pair>(scales[r * 8]));
    const uint32_t zero = zeros[r * 8];
    const float m_zero[2] = {magic_plus<T>(zero & 0xff), magic_plus<T>(zero >> 8)};
    for (int i = 0; i < NT; ++i) {
      for (int q = 0; q < 4; ++q)  // 0, 1: the even row of W; 2, 3: the odd one
        sums[r][i][q] += (q < 2 ? scale.x : scale.y) * (part[i][q] - m_zero[q / 2] * sum_x[i][q]);
    }
  }
}

// One group for many rows of x: there each fragment of W serves many products, so it is cheaper to
// turn it into (code - zero) * scale first, and no second set of sums has to fit into registers.
template <typename T, typename S>
__device__ inline void group_of_many(float (&sums)[S::R][S::NT][4], const typename S::Slot& slot,
                                     int wr, int lane) {
  using Pair = typename Half<T>::Pair;
  constexpr int R = S::R, NT = S::NT;
  const auto* scales = reinterpret_cast<const uint32_t*>(slot.affine[wr]) + lane / 4;
  const auto* zeros = reinterpret_cast<const uint16_t*>(slot.affine[wr] + 2 * R) + lane / 4;
  Pair scale[R][2], m_zero[R][2];  // of the even and the odd row, twice each
  for (int r = 0; r < R; ++r) {
    scale[r][0] = bits<Pair>(__byte_perm(scales[r * 8], 0, 0x1010));
    scale[r][1] = bits<Pair>(__byte_perm(scales[r * 8], 0, 0x3232));
    m_zero[r][0] = magic_pair<T>(zeros[r * 8] & 0xff);
    m_zero[r][1] = magic_pair<T>(zeros[r * 8] >> 8);
  }
  // For few rows of x this is the rare second try: there it is kept small.
#pragma unroll(NT > 2 ? 4 : 1)
  for (int pair = 0; pair < 4; ++pair) {  // of steps
    Words x[NT];
    for (int i = 0; i < NT; ++i) x[i] = load_x(slot.x[i][pair], lane);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const uint2 codes =
          reinterpret_cast<const uint2*>(&slot.codes[wr][pair / 2][r][lane])[pair % 2];
      for (int j = 0; j < 2; ++j) {
        uint32_t a[4];
        for (int i = 0; i < 4; ++i) {
          const Pair code =
              __hsub2(bits<Pair>(two_codes<T>(j == 0 ? codes.x : codes.y, i)), m_zero[r][i % 2]);
          a[i] = bits<uint32_t>(__hmul2(code, scale[r][i % 2]));  // the difference was exact
        }
        for (int i = 0; i < NT; ++i) multiply<T>(sums[r][i], a, x[i].at[j * 2], x[i].at[j * 2 + 1]);
      }
    }
  }
}

}  // namespace four_bit
