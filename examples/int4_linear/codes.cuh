// What the kernels share: how a 4-bit code becomes a number, and the end of a sum.
#pragma once
#include "common/divide.h"
#include "common/instructions.cuh"
#include "int4_linear.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "int4_linear needs GPUs of sm_80 or newer; does TORCH_CUDA_ARCH_LIST name an older one?"
#endif

namespace four_bit {

constexpr int kGroup = 128;  // columns that share a scale and a zero
constexpr int kTile = 16;    // rows of W in a fragment of mma.sync

__host__ __device__ inline int groups_of(const Int4Call& p) { return divide_up(p.k, kGroup); }

// A code becomes a number without a conversion: its 4 bits are put into a mantissa, from bit 3 on,
// under an exponent that makes them count as 8, 4, 2 and 1. So code 5 reads 16 + 5 in bfloat16,
// 128 + 5 in float16. That 16 or 128 is the base; kBases and kOnes are two bases, two ones.
template <typename T>
struct Half;
template <>
struct Half<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr uint32_t kBases = 0x41804180, kOnes = 0x3f803f80;
  static constexpr float kBase = 16;
  __device__ static Pair pair(float2 x) { return __float22bfloat162_rn(x); }
  __device__ static float2 floats(Pair x) { return __bfloat1622float2(x); }
};
template <>
struct Half<__half> {
  using Pair = __half2;
  static constexpr uint32_t kBases = 0x58005800, kOnes = 0x3c003c00;
  static constexpr float kBase = 128;
  __device__ static Pair pair(float2 x) { return __float22half2_rn(x); }
  __device__ static float2 floats(Pair x) { return __half22float2(x); }
};

// The base + zero, for any zero of 8 bits, as a float without a conversion: 2^23 has the exponent
// under which a mantissa's last bit counts as one.
constexpr uint32_t kTwoTo23Bits = 0x4b000000;
constexpr float kTwoTo23 = 8388608;
template <typename T>
__device__ inline float base_plus(uint32_t zero) {
  return __uint_as_float(kTwoTo23Bits | zero) - (kTwoTo23 - Half<T>::kBase);
}

// A lane's codes for four products: 2 rows and 64 columns.
struct alignas(16) Words {
  uint32_t at[4];
};

constexpr uint32_t kCodeBits = 0x00780078;        // bits 3 to 6 of each half
constexpr int kAndThenOr = (0xf0 & 0xcc) | 0xaa;  // lop3's table of x & y | z

// Codes i and i + 4 of a word, each as base + code. pack() turned the word left by 3: code 0 lies
// at bits 3 to 6, and code 7 begins with the last bit.
template <typename T>
__device__ inline uint32_t two_codes(uint32_t word, int i) {
  const uint32_t turned = i < 3 ? word >> 4 * i : __funnelshift_r(word, word, 12);
  return lop3<kAndThenOr>(turned, kCodeBits, Half<T>::kBases);
}

// __byte_perm's selectors: the lower, or the upper 16 bits of a word, twice.
constexpr uint32_t kLowerTwice = 0x1010, kUpperTwice = 0x3232;

// What a row of W has in one group; each number twice, as two codes come at a time.
template <typename T>
struct Affine {
  typename Half<T>::Pair scale, base_zero;  // base_zero: the base + zero, rounded to T
  typename Half<T>::Pair rest;              // what that rounding took, times scale: mostly 0

  // scale: its 16 bits, twice. bfloat16 has no odd numbers from 257 on, so zeros of 241, 243 ...
  // 255 are rounded to a neighbour whose half is even: down, up, down ...
  __device__ Affine() {}
  __device__ Affine(uint32_t scale, uint32_t zero) : scale(bits<decltype(this->scale)>(scale)) {
    constexpr uint32_t kOddFrom241 = 0xf1, kSigns = 0x80008000;
    const float sum = base_plus<T>(zero);
    base_zero = Half<T>::pair({sum, sum});
    const bool is_rounded = (zero & kOddFrom241) == kOddFrom241, is_up = zero & 2;
    rest = bits<decltype(rest)>(is_rounded ? scale ^ (is_up ? 0 : kSigns) : 0);
  }
  // (code - zero) * scale, for two_codes(): the difference is exact, so only the product is
  // rounded.
  __device__ uint32_t weights(uint32_t codes) const {
    const auto difference = __hsub2(bits<typename Half<T>::Pair>(codes), base_zero);
    if constexpr (Half<T>::kBase < 128)
      return bits<uint32_t>(__hfma2(difference, scale, rest));
    else
      return bits<uint32_t>(__hmul2(difference, scale));  // float16 has all numbers up to 2048
  }
};

__device__ inline float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

// Store the sums of rows `row` (even) and `row` + 1 of W for row m of x. If is_gated they are a
// gate and its partner, and silu(gate) * partner is the result.
template <typename T>
__device__ inline void store(T* y, float2 sum, bool is_gated) {
  const auto pair = [](float2 x) { return Half<T>::pair(x); };
  if (is_gated)
    *y = pair({sum.x / (1 + __expf(-sum.x)) * sum.y, 0}).x;
  else
    *reinterpret_cast<typename Half<T>::Pair*>(y) = pair(sum);
}

}  // namespace four_bit
