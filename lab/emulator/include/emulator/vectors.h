// float4 and its relatives: structs with the sizes and alignments of CUDA, so that a copy is one
// access. And dim3.
#pragma once

#define EMULATOR_VECTORS(T, name, align2, align3, align4)                                        \
  struct name##1 {                                                                               \
    T x;                                                                                         \
  };                                                                                             \
  struct alignas(align2) name##2 {                                                               \
    T x, y;                                                                                      \
  };                                                                                             \
  struct alignas(align3) name##3 {                                                               \
    T x, y, z;                                                                                   \
  };                                                                                             \
  struct alignas(align4) name##4 {                                                               \
    T x, y, z, w;                                                                                \
  };                                                                                             \
  inline name##1 make_##name##1(T x) { return {x}; }                                             \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                     \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                             \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATOR_VECTORS(signed char, char, 2, 1, 4)
EMULATOR_VECTORS(unsigned char, uchar, 2, 1, 4)
EMULATOR_VECTORS(short, short, 4, 2, 8)
EMULATOR_VECTORS(unsigned short, ushort, 4, 2, 8)
EMULATOR_VECTORS(int, int, 8, 4, 16)
EMULATOR_VECTORS(unsigned int, uint, 8, 4, 16)
EMULATOR_VECTORS(long, long, 16, 8, 16)
EMULATOR_VECTORS(unsigned long, ulong, 16, 8, 16)
EMULATOR_VECTORS(long long, longlong, 16, 8, 16)
EMULATOR_VECTORS(unsigned long long, ulonglong, 16, 8, 16)
EMULATOR_VECTORS(float, float, 8, 4, 16)
EMULATOR_VECTORS(double, double, 16, 8, 16)
#undef EMULATOR_VECTORS

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  operator uint3() const { return {x, y, z}; }
};
