// Matrices of a warp, in registers. T: __half or __nv_bfloat16.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <type_traits>

#include "common/architecture.cuh"

// ld.shared of 2, 4 or 16 bytes.
template <typename T>
__device__ inline T load_shared(uint32_t from) {
  T x;
  if constexpr (sizeof(T) == 16) {
    auto& words = reinterpret_cast<uint32_t (&)[4]>(x);
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  } else {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
  }
  return x;
}

// ldmatrix: loads four 8 x 8 matrices of 16 bits. Each lane passes the address of one row. It gets
// two neighbours of a row of each, or of a column if transposed.
template <bool kTransposed = false>
__device__ inline void ldmatrix(uint32_t (&x)[4], uint32_t row) {
#define LDMATRIX(order)                                                                    \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" order ".shared.b16 {%0, %1, %2, %3}, [%4];" \
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])                            \
               : "r"(row)                                                                  \
               : "memory")
  if constexpr (kTransposed)
    LDMATRIX(".trans");
  else
    LDMATRIX("");
#undef LDMATRIX
}

// stmatrix: stores four such matrices.
__device__ inline void stmatrix(uint32_t row, const uint32_t (&x)[4]) {
  SM_90(asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory"));
}

// movmatrix: transposes an 8 x 8 matrix.
__device__ inline uint32_t movmatrix(uint32_t x) {
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x));
  return x;
}

// mma: c += a * b. a: 16 x 16, b: 16 x 8, c: 16 x 8; or bytes and integers, with 32 columns of a
// and rows of b. Not volatile: the compiler may interleave it.
#define MMA(text, kind)                                                                           \
  asm("mma.sync.aligned." text " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+" kind(c[0]), "+" kind(c[1]), "+" kind(c[2]), "+" kind(c[3])                            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <typename T>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>)
    MMA("m16n8k16.row.col.f32.f16.f16.f32", "f");
  else
    MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "f");
}
template <typename T>
__device__ inline void mma(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MMA("m16n8k32.row.col.s32.s8.s8.s32", "r");
}
