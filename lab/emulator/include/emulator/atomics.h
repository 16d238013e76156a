// atomicAdd and its relatives, of the types that CUDA has them for.
#pragma once
#include "emulator/warp.h"

namespace emulator {

template <typename T>
constexpr int type_of() {
  if (std::is_same_v<T, float>) return kF32;
  if (std::is_same_v<T, double>) return kF64;
  if (sizeof(T) == 2) return kU16;
  if (sizeof(T) == 8) return std::is_signed_v<T> ? kI64 : kU64;
  return std::is_signed_v<T> ? kI32 : kU32;
}
template <typename T>
EMULATOR_INLINE T atomic(T* address, AtomicOperation operation, T x, T compare = T()) {
  return from_bits<T>(
      emulator_atomic(address, operation, type_of<T>(), bits_of(x), bits_of(compare)));
}
template <typename T>
struct Same {
  using type = T;
};
template <typename T>
using same = typename Same<T>::type;  // no type is deduced from it

}  // namespace emulator

#define EMULATOR_ATOMIC(name, operation)                             \
  template <typename T>                                              \
  EMULATOR_INLINE T name(T* address, emulator::same<T> x) {          \
    return emulator::atomic<T>(address, emulator::operation, x);     \
  }                                                                  \
  template <typename T>                                              \
  EMULATOR_INLINE T name##_block(T* address, emulator::same<T> x) {  \
    return emulator::atomic<T>(address, emulator::operation, x);     \
  }                                                                  \
  template <typename T>                                              \
  EMULATOR_INLINE T name##_system(T* address, emulator::same<T> x) { \
    return emulator::atomic<T>(address, emulator::operation, x);     \
  }
EMULATOR_ATOMIC(atomicAdd, kAdd)
EMULATOR_ATOMIC(atomicExch, kExchange)
EMULATOR_ATOMIC(atomicMin, kMin)
EMULATOR_ATOMIC(atomicMax, kMax)
EMULATOR_ATOMIC(atomicInc, kIncrement)
EMULATOR_ATOMIC(atomicDec, kDecrement)
EMULATOR_ATOMIC(atomicAnd, kAnd)
EMULATOR_ATOMIC(atomicOr, kOr)
EMULATOR_ATOMIC(atomicXor, kXor)
#undef EMULATOR_ATOMIC

template <typename T>
EMULATOR_INLINE T atomicSub(T* address, emulator::same<T> x) {
  return emulator::atomic<T>(address, emulator::kAdd, T(0) - x);
}
template <typename T>
EMULATOR_INLINE T atomicCAS(T* address, emulator::same<T> compare, emulator::same<T> x) {
  return emulator::atomic<T>(address, emulator::kCompareAndSwap, x, compare);
}
template <typename T>
EMULATOR_INLINE T atomicCAS_block(T* address, emulator::same<T> compare, emulator::same<T> x) {
  return atomicCAS(address, compare, x);
}
template <typename T>
EMULATOR_INLINE T atomicCAS_system(T* address, emulator::same<T> compare, emulator::same<T> x) {
  return atomicCAS(address, compare, x);
}
template <typename T>
EMULATOR_INLINE T atomicSub_block(T* address, emulator::same<T> x) {
  return atomicSub(address, x);
}
template <typename T>
EMULATOR_INLINE T atomicSub_system(T* address, emulator::same<T> x) {
  return atomicSub(address, x);
}
