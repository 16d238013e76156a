// Matrices of a warpgroup, 4 warps: factors in shared memory, accumulators in registers. CUDA C++
// has no function for any of these instructions.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "common/architecture.cuh"

// setmaxnreg: a warpgroup gives registers back, or takes those that others have given.
template <int kRegisters>
__device__ inline void warpgroup_reg_dealloc() {
  SM_90A(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory"));
}
template <int kRegisters>
__device__ inline void warpgroup_reg_alloc() {
  SM_90A(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory"));
}

// A tile in shared memory: its address, 1024 bytes from 8 rows to the next 8, the 128-byte swizzle.
// (1 << 16: the leading dimension's offset, which swizzled tiles with rows along K do not use.)
// 16 columns further are 32 bytes, 2 in the descriptor: the hardware swizzles after the addition.
__device__ inline uint64_t matrix_descriptor(uint32_t tile) {
  return tile >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

template <typename T>
struct PtxType {
  static constexpr char text[] = "bf16";
};
template <>
struct PtxType<__half> {
  static constexpr char text[] = "f16";
};

// wgmma: d = a b^T, or d += a b^T if is_sum, for 64 rows of a and `width` of b, 16 columns of each.
// b is described; so is a, or it is in registers as for mma. PTX wants each register by name.
#define TO1(t) "%" #t "0, %" #t "1"
#define TO3(t) TO1(t) ", %" #t "2, %" #t "3"
#define TO5(t) TO3(t) ", %" #t "4, %" #t "5"
#define TO7(t) TO5(t) ", %" #t "6, %" #t "7"
#define TO9(t) TO7(t) ", %" #t "8, %" #t "9"
#define TEN(t) TO9(t) ", "
#define FIFTY(a, b, c, d, e) TEN(a) TEN(b) TEN(c) TEN(d) TEN(e)
#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8(i) F4(i), F4(i + 4)
#define F32(i) F8(i), F8(i + 8), F8(i + 16), F8(i + 24)
#define WGMMA_ASM(width, names, type, add, b, a, ...)                                    \
  SM_90A(asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" #add                            \
                      ", 0;\nwgmma.mma_async.sync.aligned.m64n" #width "k16.f32.%" #type \
                      ".%" #type " {" names "}, " a ", %" #b ", p, 1, 1, " __VA_ARGS__))
#define WGMMA(width, names, type, add, b, a0, a1, a2, a3, ...)                                     \
  template <typename T>                                                                            \
  __device__ inline void wgmma(float (&d)[width / 2], uint64_t a, uint64_t of_b, bool is_sum) {    \
    WGMMA_ASM(width, names, type, add, b, "%" #a0, "0, 0;}" : __VA_ARGS__ : "C"(PtxType<T>::text), \
              "r"(int(is_sum)), "l"(of_b), "l"(a));                                                \
  }                                                                                                \
  template <typename T>                                                                            \
  __device__ inline void wgmma(float (&d)[width / 2], const uint32_t (&a)[4], uint64_t of_b,       \
                               bool is_sum) {                                                      \
    WGMMA_ASM(width, names, type, add, b, "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}",              \
              "0;}" : __VA_ARGS__ : "C"(PtxType<T>::text), "r"(int(is_sum)), "l"(of_b), "r"(a[0]), \
              "r"(a[1]), "r"(a[2]), "r"(a[3]));                                                    \
  }
WGMMA(16, TO7(), 8, 9, 10, 11, 12, 13, 14, F8(0))
WGMMA(32, TEN() TO5(1), 16, 17, 18, 19, 20, 21, 22, F8(0), F8(8))
WGMMA(64, TEN() TEN(1) TEN(2) TO1(3), 32, 33, 34, 35, 36, 37, 38, F32(0))
WGMMA(72, TEN() TEN(1) TEN(2) TO5(3), 36, 37, 38, 39, 40, 41, 42, F32(0), F4(32))
WGMMA(80, TEN() TEN(1) TEN(2) TO9(3), 40, 41, 42, 43, 44, 45, 46, F32(0), F8(32))
WGMMA(88, TEN() TEN(1) TEN(2) TEN(3) TO3(4), 44, 45, 46, 47, 48, 49, 50, F32(0), F8(32), F4(40))
WGMMA(96, TEN() TEN(1) TEN(2) TEN(3) TO7(4), 48, 49, 50, 51, 52, 53, 54, F32(0), F8(32), F8(40))
WGMMA(104, FIFTY(, 1, 2, 3, 4) TO1(5), 52, 53, 54, 55, 56, 57, 58, F32(0), F8(32), F8(40), F4(48))
WGMMA(112, FIFTY(, 1, 2, 3, 4) TO5(5), 56, 57, 58, 59, 60, 61, 62, F32(0), F8(32), F8(40), F8(48))
WGMMA(120, FIFTY(, 1, 2, 3, 4) TO9(5), 60, 61, 62, 63, 64, 65, 66, F32(0), F8(32), F8(40), F8(48),
      F4(56))
WGMMA(128, FIFTY(, 1, 2, 3, 4) TEN(5) TO3(6), 64, 65, 66, 67, 68, 69, 70, F32(0), F32(32))
WGMMA(136, FIFTY(, 1, 2, 3, 4) TEN(5) TO7(6), 68, 69, 70, 71, 72, 73, 74, F32(0), F32(32), F4(64))
WGMMA(144, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TO1(7), 72, 73, 74, 75, 76, 77, 78, F32(0), F32(32),
      F8(64))
WGMMA(152, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TO5(7), 76, 77, 78, 79, 80, 81, 82, F32(0), F32(32),
      F8(64), F4(72))
WGMMA(160, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TO9(7), 80, 81, 82, 83, 84, 85, 86, F32(0), F32(32),
      F8(64), F8(72))
WGMMA(168, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TEN(7) TO3(8), 84, 85, 86, 87, 88, 89, 90, F32(0),
      F32(32), F8(64), F8(72), F4(80))
WGMMA(176, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TEN(7) TO7(8), 88, 89, 90, 91, 92, 93, 94, F32(0),
      F32(32), F8(64), F8(72), F8(80))
WGMMA(184, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TEN(7) TEN(8) TO1(9), 92, 93, 94, 95, 96, 97, 98,
      F32(0), F32(32), F8(64), F8(72), F8(80), F4(88))
WGMMA(192, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TEN(7) TEN(8) TO5(9), 96, 97, 98, 99, 100, 101, 102,
      F32(0), F32(32), F32(64))
WGMMA(200, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TEN(7) TEN(8) TO9(9), 100, 101, 102, 103, 104, 105,
      106, F32(0), F32(32), F32(64), F4(96))
WGMMA(208, FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TO3(10), 104, 105, 106, 107, 108, 109, 110,
      F32(0), F32(32), F32(64), F8(96))
WGMMA(216, FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TO7(10), 108, 109, 110, 111, 112, 113, 114,
      F32(0), F32(32), F32(64), F8(96), F4(104))
WGMMA(224, FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TEN(10) TO1(11), 112, 113, 114, 115, 116, 117,
      118, F32(0), F32(32), F32(64), F8(96), F8(104))
WGMMA(232, FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TEN(10) TO5(11), 116, 117, 118, 119, 120, 121,
      122, F32(0), F32(32), F32(64), F8(96), F8(104), F4(112))
WGMMA(240, FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TEN(10) TO9(11), 120, 121, 122, 123, 124, 125,
      126, F32(0), F32(32), F32(64), F8(96), F8(104), F8(112))
WGMMA(248, FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TEN(10) TEN(11) TO3(12), 124, 125, 126, 127,
      128, 129, 130, F32(0), F32(32), F32(64), F8(96), F8(104), F8(112), F4(120))
WGMMA(256, FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TEN(10) TEN(11) TO7(12), 128, 129, 130, 131,
      132, 133, 134, F32(0), F32(32), F32(64), F32(96))

// wgmma.fence, commit_group, wait_group: before the first product of a group, after its last one,
// and until all but the last kNumber groups are done. The sums must not be touched before: ptxas
// would serialize the products (warning C7510).
__device__ inline void warpgroup_arrive() {
  SM_90A(asm volatile("wgmma.fence.sync.aligned;" :: : "memory"));
}
__device__ inline void warpgroup_commit_batch() {
  SM_90A(asm volatile("wgmma.commit_group.sync.aligned;" :: : "memory"));
}
template <int kNumber>
__device__ inline void warpgroup_wait() {
  SM_90A(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNumber) : "memory"));
}

// No instruction: after warpgroup_wait<0>, the compiler must not move a use of d before it.
template <int kSums>
__device__ inline void warpgroup_fence_operand(float (&d)[kSums]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}
