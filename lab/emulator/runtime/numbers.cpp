// Numbers of 16 bits: float16 has 5 bits of exponent and 10 of mantissa, bfloat16 the upper half of
// a float32.
#include <math.h>
#include <string.h>

#include "emulator/runtime.h"

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

EMULATOR_API float emulator_half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31;
  const uint32_t mantissa = half & 1023;
  if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {  // zero, or without the leading one
    const float x = float(mantissa) * 0x1p-24f;
    return float_of(sign | bits_of(x));
  }
  return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Rounds |x| >= 0 to `step`. toward: 0 nearest even, 1 zero, 2 down, 3 up.
static double round_to(double x, double step, int toward, bool is_negative) {
  const double scaled = x / step, low = floor(scaled), rest = scaled - low;
  bool up = false;
  if (toward == 0) up = rest > 0.5 || (rest == 0.5 && fmod(low, 2) == 1);
  if (toward == 2) up = is_negative && rest > 0;
  if (toward == 3) up = !is_negative && rest > 0;
  return (low + up) * step;
}

// To a number of `digits` bits after the leading one, with exponents from `least` on.
static double rounded(double x, int digits, int least, int toward) {
  const double size = fabs(x);
  if (size == 0 || isinf(x) || isnan(x)) return x;
  int exponent;
  frexp(size, &exponent);
  if (exponent - 1 < least) exponent = least + 1;
  return copysign(round_to(size, ldexp(1, exponent - 1 - digits), toward, x < 0), x);
}

static uint16_t pack_half(double x, int toward) {
  const uint16_t sign = signbit(x) ? 0x8000 : 0;
  if (isnan(x)) return 0x7fff;
  const double size = fabs(rounded(x, 10, -14, toward));
  if (size >= 65536) {
    const bool is_finite = !isinf(x) && (toward == 1 || (toward == 2 && x > 0) || (toward == 3 && x < 0));
    return sign | (is_finite ? 0x7bff : 0x7c00);
  }
  if (size < 0x1p-14) return sign | uint16_t(size * 0x1p24);
  int exponent;
  const double mantissa = frexp(size, &exponent);  // 0.5 <= mantissa < 1
  return sign | uint16_t((exponent + 14) << 10) | (uint16_t(mantissa * 2048) & 1023);
}

EMULATOR_API uint16_t emulator_half_from_float(float x, int toward) {
  // The usual case without a logarithm: a normal number, rounded to nearest.
  const uint32_t bits = bits_of(x), size = bits & 0x7fffffff;
  if (toward == 0 && size >= 0x38800000 && size < 0x477fe000) {
    const uint32_t up = 0xfff + (size >> 13 & 1);
    return uint16_t(bits >> 16 & 0x8000) | uint16_t((size + up - 0x38000000) >> 13);
  }
  return pack_half(x, toward);
}
EMULATOR_API uint16_t emulator_half_from_double(double x) { return pack_half(x, 0); }

EMULATOR_API uint16_t emulator_bfloat16_from_float(float x, int toward) {
  const uint32_t bits = bits_of(x);
  if (isnan(x)) return 0x7fff;
  if (isinf(x)) return bits >> 16;
  const bool is_negative = bits >> 31, has_rest = bits & 0xffff;
  if (toward == 0) return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const bool up = has_rest && (toward == 2 ? is_negative : toward == 3 ? !is_negative : false);
  return (bits >> 16) + up;
}

// By way of a float that is odd where digits were lost, so that rounding twice is rounding once.
EMULATOR_API uint16_t emulator_bfloat16_from_double(double x) {
  if (isnan(x)) return 0x7fff;
  float close = static_cast<float>(x);
  if (double(close) != x && !isinf(close)) {
    uint32_t bits = bits_of(close);
    if (fabs(double(close)) > fabs(x)) --bits;
    close = float_of(bits | 1);
  }
  return emulator_bfloat16_from_float(close, 0);
}
