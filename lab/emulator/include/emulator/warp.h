// Barriers, operations of a warp, fences.
#pragma once
#include <stdint.h>
#include <string.h>

#include "emulator/launch.h"

EMULATOR_INLINE void __syncthreads() { emulator_barrier(0, 0, 0, 0); }
EMULATOR_INLINE int __syncthreads_count(int x) { return emulator_barrier(0, 0, x, 1); }
EMULATOR_INLINE int __syncthreads_and(int x) { return emulator_barrier(0, 0, x, 2); }
EMULATOR_INLINE int __syncthreads_or(int x) { return emulator_barrier(0, 0, x, 3); }
EMULATOR_INLINE void __syncwarp(unsigned mask = ~0u) {
  emulator_warp(emulator::kSyncWarp, mask, 0, 0, 32);
}
EMULATOR_INLINE void __threadfence_block() { emulator_fence(0); }
EMULATOR_INLINE void __threadfence() { emulator_fence(1); }
EMULATOR_INLINE void __threadfence_system() { emulator_fence(2); }

namespace emulator {

template <typename T>
EMULATOR_INLINE uint64_t bits_of(T x) {
  static_assert(sizeof(T) <= 8, "a value of a warp's operation has at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof(T));
  return bits;
}
template <typename T>
EMULATOR_INLINE T from_bits(uint64_t bits) {
  T x;
  __builtin_memcpy(&x, &bits, sizeof(T));
  return x;
}
template <typename T>
EMULATOR_INLINE T shuffle(int operation, unsigned mask, T x, int lane, int width) {
  return from_bits<T>(emulator_warp(operation, mask, bits_of(x), lane, width));
}

}  // namespace emulator

template <typename T>
EMULATOR_INLINE T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
  return emulator::shuffle(emulator::kShuffle, mask, x, lane, width);
}
template <typename T>
EMULATOR_INLINE T __shfl_up_sync(unsigned mask, T x, unsigned distance, int width = 32) {
  return emulator::shuffle(emulator::kShuffleUp, mask, x, distance, width);
}
template <typename T>
EMULATOR_INLINE T __shfl_down_sync(unsigned mask, T x, unsigned distance, int width = 32) {
  return emulator::shuffle(emulator::kShuffleDown, mask, x, distance, width);
}
template <typename T>
EMULATOR_INLINE T __shfl_xor_sync(unsigned mask, T x, int lanes, int width = 32) {
  return emulator::shuffle(emulator::kShuffleXor, mask, x, lanes, width);
}

EMULATOR_INLINE unsigned __activemask() { return emulator_active_mask(); }
EMULATOR_INLINE unsigned __ballot_sync(unsigned mask, int x) {
  return unsigned(emulator_warp(emulator::kBallot, mask, x != 0, 0, 32));
}
EMULATOR_INLINE int __any_sync(unsigned mask, int x) { return __ballot_sync(mask, x) != 0; }
EMULATOR_INLINE int __all_sync(unsigned mask, int x) { return __ballot_sync(mask, !x) == 0; }
template <typename T>
EMULATOR_INLINE unsigned __match_any_sync(unsigned mask, T x) {
  return unsigned(emulator_warp(emulator::kMatchAny, mask, emulator::bits_of(x), 0, 32));
}
template <typename T>
EMULATOR_INLINE unsigned __match_all_sync(unsigned mask, T x, int* is_same) {
  const auto found = unsigned(emulator_warp(emulator::kMatchAll, mask, emulator::bits_of(x), 0, 32));
  *is_same = found != 0;
  return found;
}

#define EMULATOR_REDUCE(name, T, operation)                          \
  EMULATOR_INLINE T __reduce_##name##_sync(unsigned mask, T x) {     \
    return T(emulator_warp(emulator::operation, mask, unsigned(x), 0, 32)); \
  }
EMULATOR_REDUCE(add, unsigned, kReduceAdd)
EMULATOR_REDUCE(add, int, kReduceAdd)
EMULATOR_REDUCE(min, unsigned, kReduceMin)
EMULATOR_REDUCE(min, int, kReduceMinSigned)
EMULATOR_REDUCE(max, unsigned, kReduceMax)
EMULATOR_REDUCE(max, int, kReduceMaxSigned)
EMULATOR_REDUCE(and, unsigned, kReduceAnd)
EMULATOR_REDUCE(or, unsigned, kReduceOr)
EMULATOR_REDUCE(xor, unsigned, kReduceXor)
#undef EMULATOR_REDUCE

EMULATOR_INLINE void __trap() { emulator_trap(); }
EMULATOR_INLINE void __brkpt() { emulator_trap(); }
EMULATOR_INLINE void __nanosleep(unsigned) {}
EMULATOR_INLINE long long clock64() { return (long long)emulator_clock(); }
EMULATOR_INLINE unsigned long long __globaltimer() { return emulator_clock(); }

EMULATOR_INLINE size_t __cvta_generic_to_shared(const void* pointer) {
  return emulator_shared_address(pointer);
}
EMULATOR_INLINE void* __cvta_shared_to_generic(size_t address) {
  return emulator_shared_pointer(uint32_t(address));
}
EMULATOR_INLINE size_t __cvta_generic_to_global(const void* pointer) { return size_t(pointer); }
