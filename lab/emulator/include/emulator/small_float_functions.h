// What a number of 16 bits (Small) and a pair of them (Pair) can do: arithmetic in float, rounded
// once. Included twice, so it has no guard: with Small and Pair of float16, and of bfloat16.

// ---- One number.
#define EMULATOR_TWO(name, expression)                        \
  EMULATOR_INLINE Small name(Small a, Small b) {              \
    const float x = a.emulator_wide(), y = b.emulator_wide(); \
    return Small(float(expression));                          \
  }
EMULATOR_TWO(__hadd, x + y)
EMULATOR_TWO(__hadd_rn, x + y)
EMULATOR_TWO(__hsub, x - y)
EMULATOR_TWO(__hsub_rn, x - y)
EMULATOR_TWO(__hmul, x* y)
EMULATOR_TWO(__hmul_rn, x* y)
EMULATOR_TWO(__hdiv, x / y)
EMULATOR_TWO(__hadd_sat, fminf(fmaxf(x + y, 0), 1))
EMULATOR_TWO(__hsub_sat, fminf(fmaxf(x - y, 0), 1))
EMULATOR_TWO(__hmul_sat, fminf(fmaxf(x* y, 0), 1))
EMULATOR_TWO(__hmin, isnan(x) ? y : isnan(y) || x < y ? x : y)
EMULATOR_TWO(__hmax, isnan(x) ? y : isnan(y) || x > y ? x : y)
EMULATOR_TWO(__hmin_nan, isnan(x) ? x : isnan(y) || y < x ? y : x)
EMULATOR_TWO(__hmax_nan, isnan(x) ? x : isnan(y) || y > x ? y : x)
#undef EMULATOR_TWO

EMULATOR_INLINE Small __hfma(Small a, Small b, Small c) {
  return Small(double(a.emulator_wide()) * b.emulator_wide() + c.emulator_wide());
}
EMULATOR_INLINE Small __hfma_relu(Small a, Small b, Small c) {
  const Small x = __hfma(a, b, c);
  return x.emulator_wide() < 0 ? Small(0.f) : x;
}
EMULATOR_INLINE Small __hneg(Small a) { return Small::emulator_from(a.emulator_bits ^ 0x8000); }
EMULATOR_INLINE Small __habs(Small a) { return Small::emulator_from(a.emulator_bits & 0x7fff); }
EMULATOR_INLINE bool __hisnan(Small a) { return isnan(a.emulator_wide()); }
EMULATOR_INLINE int __hisinf(Small a) { return isinf(a.emulator_wide()); }

#define EMULATOR_COMPARE(name, operation)                 \
  EMULATOR_INLINE bool name(Small a, Small b) {           \
    return a.emulator_wide() operation b.emulator_wide(); \
  }
EMULATOR_COMPARE(__heq, ==)
EMULATOR_COMPARE(__hne, !=)
EMULATOR_COMPARE(__hlt, <)
EMULATOR_COMPARE(__hle, <=)
EMULATOR_COMPARE(__hgt, >)
EMULATOR_COMPARE(__hge, >=)
#undef EMULATOR_COMPARE

#define EMULATOR_ONE(name, expression)  \
  EMULATOR_INLINE Small name(Small a) { \
    const float x = a.emulator_wide();  \
    return Small(float(expression));    \
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
  EMULATOR_INLINE Pair name(Pair a, Pair b) { return {one(a.x, b.x), one(a.y, b.y)}; }
EMULATOR_TWICE(__hadd2, __hadd)
EMULATOR_TWICE(__hadd2_rn, __hadd)
EMULATOR_TWICE(__hsub2, __hsub)
EMULATOR_TWICE(__hsub2_rn, __hsub)
EMULATOR_TWICE(__hmul2, __hmul)
EMULATOR_TWICE(__hmul2_rn, __hmul)
EMULATOR_TWICE(__h2div, __hdiv)
EMULATOR_TWICE(__hadd2_sat, __hadd_sat)
EMULATOR_TWICE(__hsub2_sat, __hsub_sat)
EMULATOR_TWICE(__hmul2_sat, __hmul_sat)
EMULATOR_TWICE(__hmin2, __hmin)
EMULATOR_TWICE(__hmax2, __hmax)
#undef EMULATOR_TWICE

EMULATOR_INLINE Pair __hfma2(Pair a, Pair b, Pair c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
EMULATOR_INLINE Pair __hneg2(Pair a) { return {__hneg(a.x), __hneg(a.y)}; }
EMULATOR_INLINE Pair __habs2(Pair a) { return {__habs(a.x), __habs(a.y)}; }
#define EMULATOR_COMPARE(name, one)                                              \
  EMULATOR_INLINE Pair name(Pair a, Pair b) {                                    \
    return {Small(one(a.x, b.x) ? 1.f : 0.f), Small(one(a.y, b.y) ? 1.f : 0.f)}; \
  }
EMULATOR_COMPARE(__heq2, __heq)
EMULATOR_COMPARE(__hne2, __hne)
EMULATOR_COMPARE(__hlt2, __hlt)
EMULATOR_COMPARE(__hle2, __hle)
EMULATOR_COMPARE(__hgt2, __hgt)
EMULATOR_COMPARE(__hge2, __hge)
#undef EMULATOR_COMPARE
EMULATOR_INLINE bool __hbeq2(Pair a, Pair b) { return __heq(a.x, b.x) && __heq(a.y, b.y); }
EMULATOR_INLINE float __low2float(Pair a) { return a.x.emulator_wide(); }
EMULATOR_INLINE float __high2float(Pair a) { return a.y.emulator_wide(); }
EMULATOR_INLINE Pair __lowhigh2highlow(Pair a) { return {a.y, a.x}; }
EMULATOR_INLINE Pair __lows2(Pair a, Pair b) { return {a.x, b.x}; }
EMULATOR_INLINE Pair __highs2(Pair a, Pair b) { return {a.y, b.y}; }
EMULATOR_INLINE Pair h2exp(Pair a) { return {hexp(a.x), hexp(a.y)}; }
EMULATOR_INLINE Pair h2exp2(Pair a) { return {hexp2(a.x), hexp2(a.y)}; }
EMULATOR_INLINE Pair h2log(Pair a) { return {hlog(a.x), hlog(a.y)}; }
EMULATOR_INLINE Pair h2rcp(Pair a) { return {hrcp(a.x), hrcp(a.y)}; }
EMULATOR_INLINE Pair h2sin(Pair a) { return {hsin(a.x), hsin(a.y)}; }
EMULATOR_INLINE Pair h2cos(Pair a) { return {hcos(a.x), hcos(a.y)}; }
EMULATOR_INLINE Pair h2tanh(Pair a) { return {htanh(a.x), htanh(a.y)}; }
EMULATOR_INLINE Pair h2sqrt(Pair a) { return {hsqrt(a.x), hsqrt(a.y)}; }
EMULATOR_INLINE Pair h2rsqrt(Pair a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }

// ---- Operators. torch compiles .cu files without them, so code for both uses the functions above.
#ifdef EMULATOR_WITH_OPERATORS
#define EMULATOR_OPERATOR(T, symbol, name)                           \
  EMULATOR_INLINE T operator symbol(T a, T b) { return name(a, b); } \
  EMULATOR_INLINE T& operator symbol## = (T & a, T b) { return a = name(a, b); }
EMULATOR_OPERATOR(Small, +, __hadd)
EMULATOR_OPERATOR(Small, -, __hsub)
EMULATOR_OPERATOR(Small, *, __hmul)
EMULATOR_OPERATOR(Small, /, __hdiv)
EMULATOR_OPERATOR(Pair, +, __hadd2)
EMULATOR_OPERATOR(Pair, -, __hsub2)
EMULATOR_OPERATOR(Pair, *, __hmul2)
EMULATOR_OPERATOR(Pair, /, __h2div)
#undef EMULATOR_OPERATOR
EMULATOR_INLINE Small operator-(Small a) { return __hneg(a); }
EMULATOR_INLINE Small operator+(Small a) { return a; }
EMULATOR_INLINE bool operator==(Small a, Small b) { return __heq(a, b); }
EMULATOR_INLINE bool operator!=(Small a, Small b) { return __hne(a, b); }
EMULATOR_INLINE bool operator<(Small a, Small b) { return __hlt(a, b); }
EMULATOR_INLINE bool operator<=(Small a, Small b) { return __hle(a, b); }
EMULATOR_INLINE bool operator>(Small a, Small b) { return __hgt(a, b); }
EMULATOR_INLINE bool operator>=(Small a, Small b) { return __hge(a, b); }
#endif
#undef EMULATOR_WITH_OPERATORS
