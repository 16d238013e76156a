// Barriers in shared memory (mbarrier, sm_90 and newer): threads arrive, and so do bytes.
#pragma once
#include <stdint.h>

namespace four_bit {

__device__ inline uint32_t address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// A barrier in shared memory: its phase ends when `count` arrivals and all announced bytes are in.
__device__ inline void init_barrier(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count));
}

__device__ inline void arrive_and_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

// Phases alternate between 0 and 1. A `trap` in here, as a guard, would make ptxas serialize wgmma.
__device__ inline void wait(uint64_t* barrier, int phase) {
  uint32_t is_over;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(is_over)
        : "r"(address(barrier)), "r"(phase)
        : "memory");
  } while (!is_over);
}

}  // namespace four_bit
