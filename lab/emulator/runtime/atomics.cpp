// Atomic operations. One thread runs at a time, so each is a load and a store; what matters is that
// they are checked and counted as atomic.
#include <string.h>

#include <algorithm>

#include "faults.h"
#include "machine.h"
#include "watch.h"

using namespace emulator;

namespace {

template <typename T>
T as(uint64_t bits) {
  T x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

template <typename T>
uint64_t bits_of(T x) {
  uint64_t bits = 0;
  memcpy(&bits, &x, sizeof(x));
  return bits;
}

template <typename T>
T combine_integers(int operation, T old, T x, T compare) {
  switch (operation) {
    case kExchange:
      return x;
    case kMin:
      return std::min(old, x);
    case kMax:
      return std::max(old, x);
    case kIncrement:
      return old >= x ? T(0) : T(old + 1);
    case kDecrement:
      return old == 0 || old > x ? x : T(old - 1);
    case kCompareAndSwap:
      return old == compare ? x : old;
    case kAnd:
      return old & x;
    case kOr:
      return old | x;
    case kXor:
      return old ^ x;
    default:
      return T(old + x);
  }
}

template <typename T>
T combine_floats(int operation, T old, T x) {
  if (operation == kExchange) return x;
  if (operation == kMin) return std::min(old, x);
  if (operation == kMax) return std::max(old, x);
  return old + x;
}

uint16_t add_16_bits(uint16_t old, uint16_t x, bool is_half) {
  if (is_half)
    return emulator_half_from_float(emulator_half_to_float(old) + emulator_half_to_float(x), 0);
  const auto wide = [](uint16_t bits) { return as<float>(uint64_t(bits) << 16); };
  return emulator_bfloat16_from_float(wide(old) + wide(x), 0);
}

unsigned bytes_of(int type) {
  if (type == kI64 || type == kU64 || type == kF64) return 8;
  return type == kF16 || type == kBF16 || type == kU16 ? 2 : 4;
}

uint64_t combine(int operation, int type, uint64_t old, uint64_t x, uint64_t compare) {
  switch (type) {
    case kI32:
      return bits_of(
          combine_integers(operation, as<int32_t>(old), as<int32_t>(x), as<int32_t>(compare)));
    case kU32:
      return bits_of(
          combine_integers(operation, as<uint32_t>(old), as<uint32_t>(x), as<uint32_t>(compare)));
    case kI64:
      return bits_of(
          combine_integers(operation, as<int64_t>(old), as<int64_t>(x), as<int64_t>(compare)));
    case kU64:
      return combine_integers(operation, old, x, compare);
    case kU16:
      return bits_of(
          combine_integers(operation, as<uint16_t>(old), as<uint16_t>(x), as<uint16_t>(compare)));
    case kF32:
      return bits_of(combine_floats(operation, as<float>(old), as<float>(x)));
    case kF64:
      return bits_of(combine_floats(operation, as<double>(old), as<double>(x)));
  }
  const bool is_half = type == kF16 || type == kF16x2;
  const uint64_t low = add_16_bits(old, x, is_half);
  const uint64_t high = bytes_of(type) == 4 ? add_16_bits(old >> 16, x >> 16, is_half) : 0;
  return low | high << 16;
}

}  // namespace

EMULATOR_API uint64_t emulator_atomic(void* address, int operation, int type, uint64_t value,
                                      uint64_t compare) {
  const unsigned bytes = bytes_of(type);
  const void* pc = __builtin_return_address(0);
  if (machine.current) {
    if (uintptr_t(address) % bytes) {
      Fault fault = fault_here("misaligned", pc);
      fault.access = "atomic";
      fault.address = uintptr_t(address);
      fault.bytes = bytes;
      add_fact(fault, "alignment", bytes);
      report_and_kill(fault);
    }
    // An old value before these only means one more turn, or one more of them.
    if (operation != kCompareAndSwap && operation != kMin && operation != kMax) me().last_load = 0;
    on_access({uintptr_t(address), bytes, Kind::kAtomic, false, 0}, pc);
  }
  uint64_t old = 0;
  memcpy(&old, address, bytes);
  const uint64_t now = combine(operation, type, old, value, compare);
  memcpy(address, &now, bytes);
  return old;
}

// std::atomic and the like, in host code.
#define HOST_ATOMICS(bits, T)                                                                      \
  EMULATOR_API T __tsan_atomic##bits##_load(const volatile T* p, int) {                            \
    return __atomic_load_n(p, 5);                                                                  \
  }                                                                                                \
  EMULATOR_API void __tsan_atomic##bits##_store(volatile T* p, T x, int) {                         \
    __atomic_store_n(p, x, 5);                                                                     \
  }                                                                                                \
  EMULATOR_API T __tsan_atomic##bits##_exchange(volatile T* p, T x, int) {                         \
    return __atomic_exchange_n(p, x, 5);                                                           \
  }                                                                                                \
  EMULATOR_API T __tsan_atomic##bits##_fetch_add(volatile T* p, T x, int) {                        \
    return __atomic_fetch_add(p, x, 5);                                                            \
  }                                                                                                \
  EMULATOR_API T __tsan_atomic##bits##_fetch_sub(volatile T* p, T x, int) {                        \
    return __atomic_fetch_sub(p, x, 5);                                                            \
  }                                                                                                \
  EMULATOR_API T __tsan_atomic##bits##_fetch_and(volatile T* p, T x, int) {                        \
    return __atomic_fetch_and(p, x, 5);                                                            \
  }                                                                                                \
  EMULATOR_API T __tsan_atomic##bits##_fetch_or(volatile T* p, T x, int) {                         \
    return __atomic_fetch_or(p, x, 5);                                                             \
  }                                                                                                \
  EMULATOR_API T __tsan_atomic##bits##_fetch_xor(volatile T* p, T x, int) {                        \
    return __atomic_fetch_xor(p, x, 5);                                                            \
  }                                                                                                \
  EMULATOR_API bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* old, T x, int, \
                                                                  int) {                           \
    return __atomic_compare_exchange_n(p, old, x, false, 5, 5);                                    \
  }                                                                                                \
  EMULATOR_API bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* old, T x, int,   \
                                                                int) {                             \
    return __atomic_compare_exchange_n(p, old, x, false, 5, 5);                                    \
  }
HOST_ATOMICS(8, uint8_t)
HOST_ATOMICS(16, uint16_t)
HOST_ATOMICS(32, uint32_t)
HOST_ATOMICS(64, uint64_t)
EMULATOR_API void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(5); }
