// __nv_bfloat16 and __nv_bfloat162: the upper half of a float32.
#pragma once
#include "emulator/small_floats.h"

namespace emulator {
EMULATOR_INLINE float bfloat16_to_float(unsigned short bits) {
  return from_bits<float>(uint32_t(bits) << 16);
}
}  // namespace emulator

EMULATOR_TYPES(__nv_bfloat16, __nv_bfloat16_raw, __nv_bfloat162, __nv_bfloat162_raw,
               emulator::bfloat16_to_float, emulator_bfloat16_from_float,
               emulator_bfloat16_from_double)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#ifndef __CUDA_NO_BFLOAT16_OPERATORS__
#define EMULATOR_WITH_OPERATORS
#endif
#define Small __nv_bfloat16
#define Pair __nv_bfloat162
#include "emulator/small_float_functions.h"
#undef Small
#undef Pair

EMULATOR_INLINE float __bfloat162float(__nv_bfloat16 x) { return x.emulator_wide(); }
EMULATOR_INLINE __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
EMULATOR_INLINE __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
EMULATOR_INLINE __nv_bfloat16 __float2bfloat16_rz(float x) {
  return __nv_bfloat16::emulator_from(emulator_bfloat16_from_float(x, 1));
}
EMULATOR_INLINE __nv_bfloat16 __float2bfloat16_rd(float x) {
  return __nv_bfloat16::emulator_from(emulator_bfloat16_from_float(x, 2));
}
EMULATOR_INLINE __nv_bfloat16 __float2bfloat16_ru(float x) {
  return __nv_bfloat16::emulator_from(emulator_bfloat16_from_float(x, 3));
}
EMULATOR_INLINE __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
EMULATOR_INLINE __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16(x); }
EMULATOR_INLINE __nv_bfloat16 __uint2bfloat16_rn(unsigned x) { return __nv_bfloat16(x); }
EMULATOR_INLINE __nv_bfloat16 __ll2bfloat16_rn(long long x) { return __nv_bfloat16(x); }
EMULATOR_INLINE int __bfloat162int_rn(__nv_bfloat16 x) { return __float2int_rn(x.emulator_wide()); }
EMULATOR_INLINE int __bfloat162int_rz(__nv_bfloat16 x) { return __float2int_rz(x.emulator_wide()); }
EMULATOR_INLINE short __bfloat16_as_short(__nv_bfloat16 x) { return short(x.emulator_bits); }
EMULATOR_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.emulator_bits; }
EMULATOR_INLINE __nv_bfloat16 __short_as_bfloat16(short x) { return __nv_bfloat16::emulator_from((unsigned short)x); }
EMULATOR_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16::emulator_from(x); }

EMULATOR_INLINE __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
EMULATOR_INLINE __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
EMULATOR_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 x) { return {__nv_bfloat16(x.x), __nv_bfloat16(x.y)}; }
EMULATOR_INLINE float2 __bfloat1622float2(__nv_bfloat162 x) { return {__low2float(x), __high2float(x)}; }
EMULATOR_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
EMULATOR_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
EMULATOR_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
EMULATOR_INLINE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 x) { return x.x; }
EMULATOR_INLINE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 x) { return x.y; }
EMULATOR_INLINE __nv_bfloat162 __low2bfloat162(__nv_bfloat162 x) { return {x.x, x.x}; }
EMULATOR_INLINE __nv_bfloat162 __high2bfloat162(__nv_bfloat162 x) { return {x.y, x.y}; }

EMULATOR_INLINE __nv_bfloat16 atomicAdd(__nv_bfloat16* address, __nv_bfloat16 x) {
  return __nv_bfloat16::emulator_from(
      unsigned(emulator_atomic(address, emulator::kAdd, emulator::kBF16, x.emulator_bits, 0)));
}
EMULATOR_INLINE __nv_bfloat162 atomicAdd(__nv_bfloat162* address, __nv_bfloat162 x) {
  return emulator::from_bits<__nv_bfloat162>(emulator_atomic(address, emulator::kAdd, emulator::kBF16x2,
                                                     emulator::bits_of(x), 0));
}
