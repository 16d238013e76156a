// __half and __nv_bfloat16, and pairs of them: cuda_fp16.h and cuda_bf16.h name them and their
// conversions. A copy of one is one access of 2 bytes, of a pair one of 4.
#pragma once
#include "emulator/functions.h"

// widen, narrow and from_double: the emulator's conversions.
#define EMULATOR_TYPES(T, Raw, Pair, PairRaw, widen, narrow, from_double)                         \
  struct Raw {                                                                                    \
    unsigned short x;                                                                             \
  };                                                                                              \
  struct T {                                                                                      \
    unsigned short emulator_bits;                                                                 \
    T() = default;                                                                                \
    EMULATOR_INLINE T(Raw raw) : emulator_bits(raw.x) {}                                          \
    EMULATOR_INLINE T(float x) : emulator_bits(narrow(x, 0)) {}                                   \
    EMULATOR_INLINE T(double x) : emulator_bits(from_double(x)) {}                                \
    template <typename I, std::enable_if_t<std::is_integral_v<I>, int> = 0>                       \
    EMULATOR_INLINE T(I x) : emulator_bits(from_double(double(x))) {}                             \
    EMULATOR_INLINE static T emulator_from(unsigned bits) {                                       \
      T x;                                                                                        \
      x.emulator_bits = (unsigned short)bits;                                                     \
      return x;                                                                                   \
    }                                                                                             \
    EMULATOR_INLINE float emulator_wide() const { return widen(emulator_bits); }                  \
    EMULATOR_INLINE operator float() const { return emulator_wide(); }                            \
    EMULATOR_INLINE operator Raw() const { return {emulator_bits}; }                              \
  };                                                                                              \
  struct PairRaw {                                                                                \
    unsigned short x, y;                                                                          \
  };                                                                                              \
  struct alignas(4) Pair {                                                                        \
    T x, y;                                                                                       \
    Pair() = default;                                                                             \
    EMULATOR_INLINE Pair(T a, T b) : x(a), y(b) {}                                                \
    EMULATOR_INLINE Pair(PairRaw raw) : x(T::emulator_from(raw.x)), y(T::emulator_from(raw.y)) {} \
  };
