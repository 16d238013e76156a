// Functions of one thread: mathematics, bits, loads and stores with a hint for caches.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "emulator/atomics.h"

// ---- min and max of any two numbers.
template <typename A, typename B>
constexpr std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>,
                           std::common_type_t<A, B>>
min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>)
    return fmin(T(a), T(b));
  else
    return T(b) < T(a) ? T(b) : T(a);
}
template <typename A, typename B>
constexpr std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>,
                           std::common_type_t<A, B>>
max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>)
    return fmax(T(a), T(b));
  else
    return T(a) < T(b) ? T(b) : T(a);
}
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long llmin(long long a, long long b) { return a < b ? a : b; }
inline long long llmax(long long a, long long b) { return a < b ? b : a; }
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) {
  return a < b ? a : b;
}
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) {
  return a < b ? b : a;
}

// ---- Floating point.
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float fdividef(float x, float y) { return x / y; }
// A period of sin(pi x) is 2: what is left of x is exact, so large x are right, too.
inline double sinpi(double x) { return sin(M_PI * fmod(x, 2)); }
inline double cospi(double x) { return cos(M_PI * fmod(x, 2)); }
inline float sinpif(float x) { return float(sinpi(x)); }
inline float cospif(float x) { return float(cospi(x)); }
inline void sincospi(double x, double* sine, double* cosine) {
  *sine = sinpi(x);
  *cosine = cospi(x);
}
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = sinpif(x);
  *cosine = cospif(x);
}
inline float normcdff(float x) { return 0.5f * erfcf(-x * float(M_SQRT1_2)); }
inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
inline float rcbrtf(float x) { return 1 / cbrtf(x); }
inline double rcbrt(double x) { return 1 / cbrt(x); }
inline float rhypotf(float x, float y) { return 1 / hypotf(x, y); }
inline double rhypot(double x, double y) { return 1 / hypot(x, y); }
inline double norm3d(double x, double y, double z) { return sqrt(x * x + y * y + z * z); }
inline double rnorm3d(double x, double y, double z) { return 1 / norm3d(x, y, z); }
inline double norm4d(double x, double y, double z, double w) { return hypot(norm3d(x, y, z), w); }
inline double rnorm4d(double x, double y, double z, double w) { return 1 / norm4d(x, y, z, w); }
inline float norm3df(float x, float y, float z) { return float(norm3d(x, y, z)); }
inline float rnorm3df(float x, float y, float z) { return float(rnorm3d(x, y, z)); }
inline float norm4df(float x, float y, float z, float w) { return float(norm4d(x, y, z, w)); }
inline float rnorm4df(float x, float y, float z, float w) { return float(rnorm4d(x, y, z, w)); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline void __sincosf(float x, float* sine, float* cosine) {
  *sine = sinf(x);
  *cosine = cosf(x);
}
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
inline float __frsqrt_rn(float x) { return float(1 / sqrt(double(x))); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline float __frcp_rn(float x) { return 1 / x; }
inline double __drcp_rn(double x) { return 1 / x; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

// ---- Conversions. Too large numbers become the largest ones, as on a GPU; NaN becomes 0.
namespace emulator {
template <typename To>
inline To to_integer(double x) {
  if (isnan(x)) return 0;
  constexpr double kLimit = sizeof(To) == 8 ? 0x1p63 : 0x1p31;
  constexpr bool kIsSigned = std::is_signed_v<To>;
  const double most = kIsSigned ? kLimit : 2 * kLimit, least = kIsSigned ? -kLimit : 0;
  if (x >= most) return To(~(std::make_unsigned_t<To>(kIsSigned) << (sizeof(To) * 8 - 1)));
  if (x <= least)
    return kIsSigned ? To(std::make_unsigned_t<To>(1) << (sizeof(To) * 8 - 1)) : To(0);
  return To(x);
}
}  // namespace emulator
#define EMULATOR_CONVERSIONS(from, From, to, To)                                                \
  inline To __##from##2##to##_rn(From x) { return emulator::to_integer<To>(rint(double(x))); }  \
  inline To __##from##2##to##_rz(From x) { return emulator::to_integer<To>(trunc(double(x))); } \
  inline To __##from##2##to##_rd(From x) { return emulator::to_integer<To>(floor(double(x))); } \
  inline To __##from##2##to##_ru(From x) { return emulator::to_integer<To>(ceil(double(x))); }
EMULATOR_CONVERSIONS(float, float, int, int)
EMULATOR_CONVERSIONS(float, float, uint, unsigned)
EMULATOR_CONVERSIONS(float, float, ll, long long)
EMULATOR_CONVERSIONS(float, float, ull, unsigned long long)
EMULATOR_CONVERSIONS(double, double, int, int)
EMULATOR_CONVERSIONS(double, double, uint, unsigned)
EMULATOR_CONVERSIONS(double, double, ll, long long)
EMULATOR_CONVERSIONS(double, double, ull, unsigned long long)
#undef EMULATOR_CONVERSIONS
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline float __ull2float_rn(unsigned long long x) { return float(x); }
inline double __int2double_rn(int x) { return x; }
inline double __ll2double_rn(long long x) { return double(x); }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ull2double_rn(unsigned long long x) { return double(x); }
inline float __double2float_rn(double x) { return float(x); }

EMULATOR_INLINE int __float_as_int(float x) {
  return emulator::from_bits<int>(emulator::bits_of(x));
}
EMULATOR_INLINE unsigned __float_as_uint(float x) { return unsigned(emulator::bits_of(x)); }
EMULATOR_INLINE float __int_as_float(int x) { return emulator::from_bits<float>(unsigned(x)); }
EMULATOR_INLINE float __uint_as_float(unsigned x) { return emulator::from_bits<float>(x); }
EMULATOR_INLINE long long __double_as_longlong(double x) { return (long long)emulator::bits_of(x); }
EMULATOR_INLINE double __longlong_as_double(long long x) { return emulator::from_bits<double>(x); }
EMULATOR_INLINE int __double2hiint(double x) { return int(emulator::bits_of(x) >> 32); }
EMULATOR_INLINE int __double2loint(double x) { return int(emulator::bits_of(x)); }
EMULATOR_INLINE double __hiloint2double(int high, int low) {
  return emulator::from_bits<double>(uint64_t(unsigned(high)) << 32 | unsigned(low));
}

// ---- Bits and integers.
EMULATOR_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
EMULATOR_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EMULATOR_INLINE int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
EMULATOR_INLINE int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
EMULATOR_INLINE int __ffs(int x) { return __builtin_ffs(x); }
EMULATOR_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
  x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
  x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
  return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
  const uint64_t both = uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned selector = which >> 4 * i & 15;
    unsigned byte = unsigned(both >> (selector & 7) * 8) & 255;
    if (selector & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}
EMULATOR_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned bits) {
  return unsigned((uint64_t(high) << 32 | low) << (bits & 31) >> 32);
}
EMULATOR_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return unsigned((uint64_t(high) << 32 | low) >> (bits & 31));
}
// lc, rc: a shift by 32 or more counts as one by 32.
EMULATOR_INLINE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned bits) {
  return bits >= 32 ? low : __funnelshift_l(low, high, bits);
}
EMULATOR_INLINE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned bits) {
  return bits >= 32 ? high : __funnelshift_r(low, high, bits);
}
EMULATOR_INLINE int __mul24(int x, int y) { return (x << 8 >> 8) * (y << 8 >> 8); }
EMULATOR_INLINE unsigned __umul24(unsigned x, unsigned y) {
  return (x & 0xffffff) * (y & 0xffffff);
}
EMULATOR_INLINE int __mulhi(int x, int y) { return int(int64_t(x) * y >> 32); }
EMULATOR_INLINE unsigned __umulhi(unsigned x, unsigned y) {
  return unsigned(uint64_t(x) * y >> 32);
}
EMULATOR_INLINE long long __mul64hi(long long x, long long y) {
  return (long long)(__int128(x) * y >> 64);
}
EMULATOR_INLINE unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline int __dp4a(int x, int y, int sum) {
  for (int i = 0; i < 4; ++i) sum += int8_t(x >> 8 * i) * int8_t(y >> 8 * i);
  return sum;
}
inline unsigned __dp4a(unsigned x, unsigned y, unsigned sum) {
  for (int i = 0; i < 4; ++i) sum += (x >> 8 * i & 255) * (y >> 8 * i & 255);
  return sum;
}
EMULATOR_INLINE unsigned __sad(int x, int y, unsigned sum) { return sum + unsigned(abs(x - y)); }
EMULATOR_INLINE int __hadd(int x, int y) { return int((int64_t(x) + y) >> 1); }
EMULATOR_INLINE int __rhadd(int x, int y) { return int((int64_t(x) + y + 1) >> 1); }
EMULATOR_INLINE unsigned __uhadd(unsigned x, unsigned y) {
  return unsigned((uint64_t(x) + y) >> 1);
}
EMULATOR_INLINE unsigned __urhadd(unsigned x, unsigned y) {
  return unsigned((uint64_t(x) + y + 1) >> 1);
}
EMULATOR_INLINE unsigned __usad(unsigned x, unsigned y, unsigned sum) {
  return sum + (x > y ? x - y : y - x);
}

// ---- Loads and stores that tell a cache what to expect: here the same as plain ones.
#define EMULATOR_LOAD(name)                  \
  template <typename T>                      \
  EMULATOR_INLINE T name(const T* address) { \
    return *address;                         \
  }
#define EMULATOR_STORE(name)                                   \
  template <typename T>                                        \
  EMULATOR_INLINE void name(T* address, emulator::same<T> x) { \
    *address = x;                                              \
  }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldcv)
EMULATOR_LOAD(__ldlu)
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwt)
#undef EMULATOR_LOAD
#undef EMULATOR_STORE

// ---- The early start of the next kernel. Here each kernel begins when the one before has ended.
EMULATOR_INLINE void cudaTriggerProgrammaticLaunchCompletion() {}
EMULATOR_INLINE void cudaGridDependencySynchronize() {}
