// __half and __half2: float16.
#pragma once
#include "emulator/small_floats.h"

EMULATOR_TYPES(__half, __half_raw, __half2, __half2_raw, emulator_half_to_float,
               emulator_half_from_float, emulator_half_from_double)
typedef __half half;
typedef __half2 half2;

#ifndef __CUDA_NO_HALF_OPERATORS__
#define EMULATOR_WITH_OPERATORS
#endif
#define Small __half
#define Pair __half2
#include "emulator/small_float_functions.h"
#undef Small
#undef Pair

EMULATOR_INLINE float __half2float(__half x) { return x.emulator_wide(); }
EMULATOR_INLINE __half __float2half(float x) { return __half(x); }
EMULATOR_INLINE __half __float2half_rn(float x) { return __half(x); }
EMULATOR_INLINE __half __float2half_rz(float x) {
  return __half::emulator_from(emulator_half_from_float(x, 1));
}
EMULATOR_INLINE __half __float2half_rd(float x) {
  return __half::emulator_from(emulator_half_from_float(x, 2));
}
EMULATOR_INLINE __half __float2half_ru(float x) {
  return __half::emulator_from(emulator_half_from_float(x, 3));
}
EMULATOR_INLINE __half __double2half(double x) { return __half(x); }
EMULATOR_INLINE __half __int2half_rn(int x) { return __half(x); }
EMULATOR_INLINE __half __uint2half_rn(unsigned x) { return __half(x); }
EMULATOR_INLINE __half __ll2half_rn(long long x) { return __half(x); }
EMULATOR_INLINE int __half2int_rn(__half x) { return __float2int_rn(x.emulator_wide()); }
EMULATOR_INLINE int __half2int_rz(__half x) { return __float2int_rz(x.emulator_wide()); }
EMULATOR_INLINE unsigned __half2uint_rn(__half x) { return __float2uint_rn(x.emulator_wide()); }
EMULATOR_INLINE unsigned __half2uint_rz(__half x) { return __float2uint_rz(x.emulator_wide()); }
EMULATOR_INLINE long long __half2ll_rn(__half x) { return __float2ll_rn(x.emulator_wide()); }
EMULATOR_INLINE short __half2short_rn(__half x) {
  return short(max(-32768, min(32767, __half2int_rn(x))));
}
EMULATOR_INLINE short __half2short_rz(__half x) {
  return short(max(-32768, min(32767, __half2int_rz(x))));
}
EMULATOR_INLINE unsigned short __half2ushort_rn(__half x) {
  return (unsigned short)min(65535u, __half2uint_rn(x));
}
EMULATOR_INLINE __half __short2half_rn(short x) { return __half(int(x)); }
EMULATOR_INLINE __half __ushort2half_rn(unsigned short x) { return __half(int(x)); }
EMULATOR_INLINE short __half_as_short(__half x) { return short(x.emulator_bits); }
EMULATOR_INLINE unsigned short __half_as_ushort(__half x) { return x.emulator_bits; }
EMULATOR_INLINE __half __short_as_half(short x) { return __half::emulator_from((unsigned short)x); }
EMULATOR_INLINE __half __ushort_as_half(unsigned short x) { return __half::emulator_from(x); }

EMULATOR_INLINE __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
EMULATOR_INLINE __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
EMULATOR_INLINE __half2 __float22half2_rn(float2 x) { return {__half(x.x), __half(x.y)}; }
EMULATOR_INLINE float2 __half22float2(__half2 x) { return {__low2float(x), __high2float(x)}; }
EMULATOR_INLINE __half2 __half2half2(__half x) { return {x, x}; }
EMULATOR_INLINE __half2 make_half2(__half x, __half y) { return {x, y}; }
EMULATOR_INLINE __half2 __halves2half2(__half x, __half y) { return {x, y}; }
EMULATOR_INLINE __half __low2half(__half2 x) { return x.x; }
EMULATOR_INLINE __half __high2half(__half2 x) { return x.y; }
EMULATOR_INLINE __half2 __low2half2(__half2 x) { return {x.x, x.x}; }
EMULATOR_INLINE __half2 __lows2half2(__half2 x, __half2 y) { return {x.x, y.x}; }
EMULATOR_INLINE __half2 __highs2half2(__half2 x, __half2 y) { return {x.y, y.y}; }
EMULATOR_INLINE __half2 __high2half2(__half2 x) { return {x.y, x.y}; }

EMULATOR_INLINE __half atomicAdd(__half* address, __half x) {
  return __half::emulator_from(
      unsigned(emulator_atomic(address, emulator::kAdd, emulator::kF16, x.emulator_bits, 0)));
}
EMULATOR_INLINE __half2 atomicAdd(__half2* address, __half2 x) {
  return emulator::from_bits<__half2>(
      emulator_atomic(address, emulator::kAdd, emulator::kF16x2, emulator::bits_of(x), 0));
}
