// Conversions, and PTX instructions that have no C++ function.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

#include <type_traits>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "decode_attention needs GPUs of sm_80 or newer; does TORCH_CUDA_ARCH_LIST name an older one?"
#endif

namespace decode {

template <typename To, typename From>
__device__ inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<const To&>(x);
}
template <typename T>
__device__ inline uint32_t pack(float x, float y) {
  if constexpr (std::is_same_v<T, __half>)
    return bits<uint32_t>(__floats2half2_rn(x, y));
  else
    return bits<uint32_t>(__floats2bfloat162_rn(x, y));
}
template <typename T>
__device__ inline float2 unpack(uint32_t x) {
  if constexpr (std::is_same_v<T, __half>)
    return __half22float2(bits<__half2>(x));
  else
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000)};
}
__device__ inline float exp_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Programmatic dependent launch: lets the next kernel start, and waits for the previous one.
__device__ inline void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void prefetch(const void* from) {  // a line of 128 bytes, into L2
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Copies to shared memory in the background, or writes zeros. A step reads the cache only once, so
// L2 should evict it first.
__device__ inline void copy_16(uint32_t to, const void* from, bool is_used) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(from), "r"(is_used ? 16 : 0), "l"(policy));
}
__device__ inline void copy_4(uint32_t to, const void* from, bool is_used) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(is_used ? 4 : 0));
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ inline void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// c += a * b. a: 16 x 16, b: 16 x 8.
template <typename T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#define MULTIPLY(type)                                                       \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (std::is_same_v<T, __half>)
    MULTIPLY("f16");
  else
    MULTIPLY("bf16");
#undef MULTIPLY
}
// The same with bytes and integers. a: 16 x 32, b: 32 x 8.
template <typename T>
__device__ inline void multiply(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four 8 x 8 matrices of 16 bits: 16 bytes of tokens 0 to 7, of tokens 8 to 15, and the next
// 16 bytes of both. Each lane passes the address of one row. It gets two neighbours of a row, or of
// a column if transposed.
template <bool kTransposed>
__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t row) {
#define LOAD(trans)                                                                        \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {%0, %1, %2, %3}, [%4];" \
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])                            \
               : "r"(row)                                                                  \
               : "memory")
  if constexpr (kTransposed)
    LOAD(".trans");
  else
    LOAD("");
#undef LOAD
}
__device__ inline uint32_t transpose(uint32_t x) {  // an 8 x 8 matrix
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x));
  return x;
}

}  // namespace decode
