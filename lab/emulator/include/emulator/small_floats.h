// What __half and __nv_bfloat16 have in common: arithmetic in float, rounded once, and the same of
// pairs. cuda_fp16.h and cuda_bf16.h add the types and the conversions that have their names.
#pragma once
#include "emulator/functions.h"

namespace emulator {

template <typename T>
struct IsSmall : std::false_type {};
template <typename T>
struct IsPair : std::false_type {};
template <typename T>
using if_small = std::enable_if_t<IsSmall<T>::value, int>;
template <typename T>
using if_pair = std::enable_if_t<IsPair<T>::value, int>;

}  // namespace emulator

#define EMULATOR_SMALL template <typename T, emulator::if_small<T> = 0> EMULATOR_INLINE
#define EMULATOR_PAIR template <typename T, emulator::if_pair<T> = 0> EMULATOR_INLINE

// ---- One number.
#define EMULATOR_TWO(name, expression)                \
  EMULATOR_SMALL T name(T a, T b) {                   \
    const float x = a.emulator_wide(), y = b.emulator_wide(); \
    return T(float(expression));                      \
  }
EMULATOR_TWO(__hadd, x + y)
EMULATOR_TWO(__hadd_rn, x + y)
EMULATOR_TWO(__hsub, x - y)
EMULATOR_TWO(__hsub_rn, x - y)
EMULATOR_TWO(__hmul, x* y)
EMULATOR_TWO(__hmul_rn, x* y)
EMULATOR_TWO(__hdiv, x / y)
EMULATOR_TWO(__hmin, isnan(x) ? y : isnan(y) ? x : x < y ? x : y)
EMULATOR_TWO(__hmax, isnan(x) ? y : isnan(y) ? x : x > y ? x : y)
EMULATOR_TWO(__hmin_nan, isnan(x) ? x : isnan(y) ? y : x < y ? x : y)
EMULATOR_TWO(__hmax_nan, isnan(x) ? x : isnan(y) ? y : x > y ? x : y)
#undef EMULATOR_TWO
EMULATOR_SMALL T __hfma(T a, T b, T c) {
  return T(double(a.emulator_wide()) * b.emulator_wide() + c.emulator_wide());
}
EMULATOR_SMALL T __hneg(T a) { return T::emulator_from(a.emulator_bits ^ 0x8000); }
EMULATOR_SMALL T __habs(T a) { return T::emulator_from(a.emulator_bits & 0x7fff); }
EMULATOR_SMALL bool __hisnan(T a) { return isnan(a.emulator_wide()); }
EMULATOR_SMALL int __hisinf(T a) { return isinf(a.emulator_wide()); }
#define EMULATOR_COMPARE(name, operation)                          \
  EMULATOR_SMALL bool name(T a, T b) {                             \
    return a.emulator_wide() operation b.emulator_wide();          \
  }
EMULATOR_COMPARE(__heq, ==)
EMULATOR_COMPARE(__hne, !=)
EMULATOR_COMPARE(__hlt, <)
EMULATOR_COMPARE(__hle, <=)
EMULATOR_COMPARE(__hgt, >)
EMULATOR_COMPARE(__hge, >=)
#undef EMULATOR_COMPARE
#define EMULATOR_ONE(name, expression)     \
  EMULATOR_SMALL T name(T a) {             \
    const float x = a.emulator_wide();     \
    return T(float(expression));           \
  }
EMULATOR_ONE(hexp, expf(x))
EMULATOR_ONE(hexp2, exp2f(x))
EMULATOR_ONE(hlog, logf(x))
EMULATOR_ONE(hlog2, log2f(x))
EMULATOR_ONE(hsqrt, sqrtf(x))
EMULATOR_ONE(hrsqrt, 1 / sqrtf(x))
EMULATOR_ONE(hrcp, 1 / x)
EMULATOR_ONE(hsin, sinf(x))
EMULATOR_ONE(hcos, cosf(x))
EMULATOR_ONE(htanh, tanhf(x))
EMULATOR_ONE(hfloor, floorf(x))
EMULATOR_ONE(hceil, ceilf(x))
EMULATOR_ONE(htrunc, truncf(x))
EMULATOR_ONE(hrint, rintf(x))
#undef EMULATOR_ONE

// ---- Two of them.
#define EMULATOR_TWICE(name, one) \
  EMULATOR_PAIR T name(T a, T b) { return {one(a.x, b.x), one(a.y, b.y)}; }
EMULATOR_TWICE(__hadd2, __hadd)
EMULATOR_TWICE(__hadd2_rn, __hadd)
EMULATOR_TWICE(__hsub2, __hsub)
EMULATOR_TWICE(__hsub2_rn, __hsub)
EMULATOR_TWICE(__hmul2, __hmul)
EMULATOR_TWICE(__hmul2_rn, __hmul)
EMULATOR_TWICE(__h2div, __hdiv)
EMULATOR_TWICE(__hmin2, __hmin)
EMULATOR_TWICE(__hmax2, __hmax)
#undef EMULATOR_TWICE
EMULATOR_PAIR T __hfma2(T a, T b, T c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
EMULATOR_PAIR T __hneg2(T a) { return {__hneg(a.x), __hneg(a.y)}; }
EMULATOR_PAIR T __habs2(T a) { return {__habs(a.x), __habs(a.y)}; }
EMULATOR_PAIR bool __hbeq2(T a, T b) { return __heq(a.x, b.x) && __heq(a.y, b.y); }
EMULATOR_PAIR float __low2float(T a) { return a.x.emulator_wide(); }
EMULATOR_PAIR float __high2float(T a) { return a.y.emulator_wide(); }
EMULATOR_PAIR T __lowhigh2highlow(T a) { return {a.y, a.x}; }
EMULATOR_PAIR T __lows2(T a, T b) { return {a.x, b.x}; }
EMULATOR_PAIR T __highs2(T a, T b) { return {a.y, b.y}; }
EMULATOR_PAIR T h2exp(T a) { return {hexp(a.x), hexp(a.y)}; }
EMULATOR_PAIR T h2exp2(T a) { return {hexp2(a.x), hexp2(a.y)}; }
EMULATOR_PAIR T h2rsqrt(T a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }
EMULATOR_PAIR T h2sqrt(T a) { return {hsqrt(a.x), hsqrt(a.y)}; }
#undef EMULATOR_SMALL
#undef EMULATOR_PAIR

// The operators. torch compiles .cu files without them, so code for both uses the functions above.
#define EMULATOR_OPERATORS(T)                                                   \
  EMULATOR_INLINE T operator+(T a, T b) { return emulator::add(a, b); }         \
  EMULATOR_INLINE T operator-(T a, T b) { return emulator::subtract(a, b); }    \
  EMULATOR_INLINE T operator*(T a, T b) { return emulator::multiply(a, b); }    \
  EMULATOR_INLINE T operator/(T a, T b) { return emulator::divide(a, b); }      \
  EMULATOR_INLINE T& operator+=(T& a, T b) { return a = a + b; }                \
  EMULATOR_INLINE T& operator-=(T& a, T b) { return a = a - b; }                \
  EMULATOR_INLINE T& operator*=(T& a, T b) { return a = a * b; }                \
  EMULATOR_INLINE T& operator/=(T& a, T b) { return a = a / b; }

namespace emulator {
template <typename T, if_small<T> = 0>
EMULATOR_INLINE T add(T a, T b) { return __hadd(a, b); }
template <typename T, if_pair<T> = 0>
EMULATOR_INLINE T add(T a, T b) { return __hadd2(a, b); }
template <typename T, if_small<T> = 0>
EMULATOR_INLINE T subtract(T a, T b) { return __hsub(a, b); }
template <typename T, if_pair<T> = 0>
EMULATOR_INLINE T subtract(T a, T b) { return __hsub2(a, b); }
template <typename T, if_small<T> = 0>
EMULATOR_INLINE T multiply(T a, T b) { return __hmul(a, b); }
template <typename T, if_pair<T> = 0>
EMULATOR_INLINE T multiply(T a, T b) { return __hmul2(a, b); }
template <typename T, if_small<T> = 0>
EMULATOR_INLINE T divide(T a, T b) { return __hdiv(a, b); }
template <typename T, if_pair<T> = 0>
EMULATOR_INLINE T divide(T a, T b) { return __h2div(a, b); }
}  // namespace emulator

#define EMULATOR_SMALL_COMPARISONS(T)                                               \
  EMULATOR_INLINE T operator-(T a) { return __hneg(a); }                            \
  EMULATOR_INLINE T operator+(T a) { return a; }                                    \
  EMULATOR_INLINE bool operator==(T a, T b) { return __heq(a, b); }                 \
  EMULATOR_INLINE bool operator!=(T a, T b) { return __hne(a, b); }                 \
  EMULATOR_INLINE bool operator<(T a, T b) { return __hlt(a, b); }                  \
  EMULATOR_INLINE bool operator<=(T a, T b) { return __hle(a, b); }                 \
  EMULATOR_INLINE bool operator>(T a, T b) { return __hgt(a, b); }                  \
  EMULATOR_INLINE bool operator>=(T a, T b) { return __hge(a, b); }

// A type of 16 bits and its pair. narrow, from_double: the emulator's roundings.
#define EMULATOR_TYPES(T, Raw, Pair, PairRaw, widen, narrow, from_double)                        \
  struct Raw {                                                                                   \
    unsigned short x;                                                                            \
  };                                                                                             \
  struct T {                                                                                     \
    unsigned short emulator_bits;                                                                \
    T() = default;                                                                               \
    EMULATOR_INLINE T(Raw raw) : emulator_bits(raw.x) {}                                         \
    EMULATOR_INLINE T(float x) : emulator_bits(narrow(x, 0)) {}                                  \
    EMULATOR_INLINE T(double x) : emulator_bits(from_double(x)) {}                               \
    template <typename I, std::enable_if_t<std::is_integral_v<I>, int> = 0>                      \
    EMULATOR_INLINE T(I x) : emulator_bits(from_double(double(x))) {}                            \
    EMULATOR_INLINE static T emulator_from(unsigned bits) {                                      \
      T x;                                                                                       \
      x.emulator_bits = (unsigned short)bits;                                                    \
      return x;                                                                                  \
    }                                                                                            \
    EMULATOR_INLINE float emulator_wide() const { return widen(emulator_bits); }                 \
    EMULATOR_INLINE operator float() const { return emulator_wide(); }                           \
    EMULATOR_INLINE operator Raw() const { return {emulator_bits}; }                             \
  };                                                                                             \
  struct PairRaw {                                                                               \
    unsigned short x, y;                                                                         \
  };                                                                                             \
  struct alignas(4) Pair {                                                                       \
    T x, y;                                                                                      \
    Pair() = default;                                                                            \
    EMULATOR_INLINE Pair(T a, T b) : x(a), y(b) {}                                               \
    EMULATOR_INLINE Pair(PairRaw raw) : x(T::emulator_from(raw.x)), y(T::emulator_from(raw.y)) {} \
  };                                                                                             \
  namespace emulator {                                                                           \
  template <>                                                                                    \
  struct IsSmall<T> : std::true_type {};                                                         \
  template <>                                                                                    \
  struct IsPair<Pair> : std::true_type {};                                                       \
  }
