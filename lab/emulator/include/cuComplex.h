// Complex numbers as pairs: real part x, imaginary part y.
#pragma once
#include <math.h>

#include "cuda_runtime.h"

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

#define EMULATOR_COMPLEX(Complex, Real, f, distance)                                         \
  EMULATOR_INLINE Complex make_##Complex(Real x, Real y) { return {x, y}; }                  \
  EMULATOR_INLINE Real cuCreal##f(Complex a) { return a.x; }                                 \
  EMULATOR_INLINE Real cuCimag##f(Complex a) { return a.y; }                                 \
  EMULATOR_INLINE Complex cuConj##f(Complex a) { return {a.x, -a.y}; }                       \
  EMULATOR_INLINE Complex cuCadd##f(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; } \
  EMULATOR_INLINE Complex cuCsub##f(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; } \
  EMULATOR_INLINE Complex cuCmul##f(Complex a, Complex b) {                                  \
    return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};                                   \
  }                                                                                          \
  EMULATOR_INLINE Complex cuCfma##f(Complex a, Complex b, Complex c) {                       \
    return cuCadd##f(cuCmul##f(a, b), c);                                                    \
  }                                                                                          \
  EMULATOR_INLINE Complex cuCdiv##f(Complex a, Complex b) {                                  \
    const Real square = b.x * b.x + b.y * b.y;                                               \
    return {(a.x * b.x + a.y * b.y) / square, (a.y * b.x - a.x * b.y) / square};             \
  }                                                                                          \
  EMULATOR_INLINE Real cuCabs##f(Complex a) { return distance(a.x, a.y); }
EMULATOR_COMPLEX(cuFloatComplex, float, f, hypotf)
EMULATOR_COMPLEX(cuDoubleComplex, double, , hypot)
#undef EMULATOR_COMPLEX
EMULATOR_INLINE cuComplex make_cuComplex(float x, float y) { return {x, y}; }
EMULATOR_INLINE cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex a) { return {a.x, a.y}; }
EMULATOR_INLINE cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex a) {
  return {float(a.x), float(a.y)};
}
