// Instructions that only this kernel needs; the others are in examples/common.
#pragma once
#include "common/instructions.cuh"

namespace persistent {

// ld.relaxed, st.relaxed: all 64 bits at once, and past L1, which does not see what other
// multiprocessors write. load_two_relaxed(): each of two at once. (cuda::atomic_ref has the first
// two, but takes no vectors.)
__device__ inline uint64_t load_relaxed(const uint64_t* from) {
  uint64_t x;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
  return x;
}
__device__ inline ulonglong2 load_two_relaxed(const uint64_t* from) {
  ulonglong2 x;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(x.x), "=l"(x.y)
               : "l"(from)
               : "memory");
  return x;
}
__device__ inline void store_relaxed(uint64_t* to, uint64_t x) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

// red.release, ld.acquire: counts up in global memory, after all that this thread and those that it
// met at a barrier have written; reads such a counter, before all that they read then.
__device__ inline void count_up(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ inline unsigned load_counter(const unsigned* counter) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
  return x;
}

// cp.async.bulk: one thread copies a multiple of 16 bytes, which count at `barrier`. L2 should
// evict them first. (cuda::ptx has no such hint.)
__device__ inline void load_bulk_once(void* to, const void* from, int bytes, uint64_t* barrier) {
  uint64_t policy;
  SM_90(asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy)));
  SM_90(
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes."
                   "L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(address(to)),
                   "l"(from), "r"(bytes), "r"(address(barrier)), "l"(policy) : "memory"));
}

// max.NaN: NaN if one of them is. (fmaxf() returns the other one.)
__device__ inline float max_or_nan(float x, float y) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(x), "f"(y));
  return most;
}

// mma: c += a * b. a: 16 x 32 bytes without sign, b: 32 x 8 bytes with sign.
__device__ inline void multiply_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace persistent
