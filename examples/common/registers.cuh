// Instructions on registers: addresses, bits, arithmetic.
#pragma once
#include <stdint.h>

#include "common/architecture.cuh"

// cvta: where x lies in shared memory, as PTX counts.
__device__ inline uint32_t address(const void* x) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(x));
}

// The same bits as another type. (cuda::std::bit_cast refuses __half2 and __nv_bfloat162, whose
// copy constructors are not trivial.)
template <typename To, typename From>
__device__ inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<const To&>(x);
}

// Keeps a value in its register: the compiler would compute it anew in each turn of a loop.
__device__ inline uint32_t keep(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// No instruction: the compiler moves no access of memory over this.
__device__ inline void keep_order() { asm volatile("" ::: "memory"); }

// lop3: any function of three bits, for 32 at a time, by its table of results. (The compiler also
// makes it from & | ^, but may take two where one is enough.)
template <int kTable>
__device__ inline uint32_t lop3(uint32_t x, uint32_t y, uint32_t z) {
  asm("lop3.b32 %0, %0, %1, %2, %3;" : "+r"(x) : "r"(y), "r"(z), "n"(kTable));
  return x;
}

// mad.wide: base + index * bytes by the multiplier, while the unit for sums and shifts is busy.
template <typename P>
__device__ inline const P* offset_by(const P* base, uint32_t index, uint32_t bytes) {
  const P* sum;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(sum) : "r"(index), "r"(bytes), "l"(base));
  return sum;
}

// ex2.approx: 2^x, by the special function unit. (exp2f() is that only with -use_fast_math;
// otherwise it also takes care of denormals.)
__device__ inline float exp_2(float x) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

// rcp.approx: 1 / x, by the special function unit. (1 / x is that only with -use_fast_math.)
__device__ inline float reciprocal(float x) {
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

// mapa: the address of the same place in another block of the cluster. (The cluster's
// map_shared_rank() of cooperative_groups gives a generic address of 64 bits, which the
// instructions that take it would have to turn back.)
__device__ inline uint32_t address_in(int block, const void* x) {
  uint32_t there = address(x);
  SM_90(asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(there) : "r"(block)));
  return there;
}
