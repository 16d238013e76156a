// Instructions of PTX: a small function for each, whose comment begins with the instruction's name.
// For most of them CUDA C++ has no function, or only a long one, as in cuda::ptx, which comes with
// the toolkit. Three have one that compiles to the same instruction, but here all stand in one
// place: copy_16 (__pipeline_memcpy_async, which makes two where a condition asks for zeros),
// wait_for_kernel_before (cudaGridDependencySynchronize) and start_next_kernel
// (cudaTriggerProgrammaticLaunchCompletion).
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <cuda/ptx>
#include <type_traits>

namespace ptx = cuda::ptx;

// Older GPUs have no clusters and no early start: there these compile to nothing. TMA and wgmma, in
// lessons for Hopper, compile to a trap elsewhere; launchers ask for the GPU's architecture first.
#if __CUDA_ARCH__ >= 900
#define SM_90(...) __VA_ARGS__
#else
#define SM_90(...)
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SM_90A(...) __VA_ARGS__
#else
#define SM_90A(...) __trap()
#endif

// Functions without an argument, or with a number that is known to the compiler.
#define INSTRUCTION(from, name, text) \
  __device__ inline void name() { from(asm volatile(text:: : "memory")); }
#define INSTRUCTION_OF(from, name, text)               \
  template <int kNumber>                               \
  __device__ inline void name() {                      \
    from(asm volatile(text::"n"(kNumber) : "memory")); \
  }

// ---- Registers and addresses.

// cvta: where x lies in shared memory, as PTX counts.
__device__ inline uint32_t address(const void* x) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(x));
}

// The same bits as another type.
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

// lop3: any function of three bits, for 32 at a time, by its table of results.
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

// ex2.approx: 2^x, by the special function unit.
__device__ inline float exp_2(float x) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

// rcp.approx: 1 / x, by the special function unit.
__device__ inline float reciprocal(float x) {
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

// ---- Copies in the background, and the launch of the next kernel.

// cp.async: starts a copy of 16 bytes to shared memory, or writes zeros. __pipeline_commit() of
// <cuda_pipeline.h> ends a batch; __pipeline_wait_prior(n) waits for all but this thread's last n.
__device__ inline void copy_16(uint32_t to, const void* from, bool is_there = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}
__device__ inline void copy_4(uint32_t to, const void* from, bool is_there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 4 : 0)
               : "memory");
}

// The same for data that nothing reads again soon: L2 should evict it first.
__device__ inline void copy_16_once(uint32_t to, const void* from, bool is_there) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(from), "r"(is_there ? 16 : 0), "l"(policy)
               : "memory");
}

// prefetch: moves a line of 128 bytes into L2. It may do so before wait_for_kernel_before(): L2
// gets what that kernel still writes.
__device__ inline void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// cp.async.bulk.prefetch: the same for a multiple of 16 bytes.
__device__ inline void prefetch_bulk(const void* from, int bytes) {
  SM_90(asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes)));
}

// prefetch.tensormap: reads a map before load_tile() needs it.
__device__ inline void prefetch_map(const CUtensorMap* map) {
  SM_90(asm volatile("prefetch.tensormap [%0];" ::"l"(map)));
}

// griddepcontrol: the next kernel may start while this one runs, and then waits until this one has
// ended. The launch must allow it (launch.cuh).
INSTRUCTION(SM_90, start_next_kernel, "griddepcontrol.launch_dependents;")
INSTRUCTION(SM_90, wait_for_kernel_before, "griddepcontrol.wait;")

// ---- Matrices of a warp. T: __half or __nv_bfloat16.

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
__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t row) {
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
__device__ inline void store_matrices(uint32_t row, const uint32_t (&x)[4]) {
  SM_90(asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory"));
}

// movmatrix: transposes an 8 x 8 matrix.
__device__ inline uint32_t transpose(uint32_t x) {
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

// ---- Barriers of threads, of copies, of blocks.

// bar.sync: a barrier for some of the block's warps, `threads` together. __syncthreads() has id 0.
__device__ inline void sync_some(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// barrier.cluster: a block arrives, without waiting for its writes; and waits for all blocks of the
// cluster. Or all meet, and see what the others have written.
INSTRUCTION(SM_90, arrive_at_cluster, "barrier.cluster.arrive.relaxed.aligned;")
INSTRUCTION(SM_90, wait_for_cluster, "barrier.cluster.wait.aligned;")
INSTRUCTION(SM_90, sync_cluster, "barrier.cluster.arrive;\nbarrier.cluster.wait;")

// mbarrier.init: a phase ends when `count` threads have arrived and all expected bytes have come.
__device__ inline void init_barrier(uint64_t* barrier, int count) {
  SM_90(ptx::mbarrier_init(barrier, count));
}

// fence.mbarrier_init: makes new barriers visible to TMA and to the other blocks of the cluster.
__device__ inline void publish_barriers() {
  SM_90(ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster));
}

// mbarrier.arrive.
__device__ inline void arrive(uint64_t* barrier) {
  SM_90(ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier));
}

// mapa: the address of the same place in another block of the cluster.
__device__ inline uint32_t address_in(int block, const void* x) {
  uint32_t there = address(x);
  SM_90(asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(there) : "r"(block)));
  return there;
}

// mbarrier.arrive at the same barrier in another block of the cluster. (cuda::ptx's would also wait
// for all writes of this thread to be seen there.)
__device__ inline void arrive_at(uint64_t* barrier, int block) {
  const uint32_t there = address_in(block, barrier);
  SM_90(asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory"));
}

// mbarrier.arrive.expect_tx: arrives, and the phase waits for so many bytes more.
__device__ inline void expect_bytes(uint64_t* barrier, int bytes) {
  SM_90(ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                       bytes));
}

// mbarrier.try_wait: until a phase ends. parity: 0 for a barrier's first phase, 1 for the second,
// and so on; a fresh barrier lets 1 pass. (A __trap() for hangs in here would serialize wgmma.)
// Its acquire has the scope of the block, also for what send() of another block wrote: by the
// letter of PTX that needs the cluster's. sm_90 has the same wait for both; the wider scope adds
// only that L1 is emptied, in which shared memory is not kept. CUTLASS waits as here.
__device__ inline void wait(uint64_t* barrier, int parity) {
  SM_90(while (!ptx::mbarrier_try_wait_parity(barrier, parity)){});
}

// st.async: writes x to the same place in another block, and counts its bytes at a barrier there.
__device__ inline void send(float x, float* to, uint64_t* barrier, int block) {
  const uint32_t there = address_in(block, to), counts = address_in(block, barrier);
  SM_90(asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %2, [%1];" ::"r"(there),
      "r"(counts), "f"(x) : "memory"));
}
__device__ inline void send(float4 x, float4* to, uint64_t* barrier, int block) {
  const uint32_t there = address_in(block, to), counts = address_in(block, barrier);
  SM_90(
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, "
                   "%4, %5}, [%1];" ::"r"(there),
                   "r"(counts), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory"));
}

// ---- TMA: one thread starts the copy of a whole tile. tensor_map.cuh makes the maps.

// cp.async.bulk.tensor: elements outside of the tensor are read as zero. The bytes count at
// `barrier`, all of the tile's in any case. at: the tile's first column, row, ... With a mask it
// goes into all blocks of it, at the same place; each block's own barrier counts.
template <int kDims>
__device__ inline void load_tile(void* to, const CUtensorMap& map, uint64_t* barrier,
                                 const int (&at)[kDims], uint16_t mask = 0) {
  if (mask == 0)
    SM_90A(ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, barrier));
  else
    SM_90A(ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, barrier,
                                     mask));
}

// fence.proxy.async: TMA sees what this thread has written to shared memory.
__device__ inline void publish_to_tma() { SM_90A(ptx::fence_proxy_async(ptx::space_shared)); }

// The copy back. Elements outside of the tensor are not written.
__device__ inline void store_tile(const CUtensorMap& map, const void* from, const int (&at)[2]) {
  SM_90A(ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, at, from),
         ptx::cp_async_bulk_commit_group());
}

// cp.async.bulk.wait_group: until all but kNumber stores of this thread have read shared memory.
INSTRUCTION_OF(SM_90A, wait_stores, "cp.async.bulk.wait_group.read %0;")

// ---- wgmma: matrices of a warpgroup, 4 warps.

// setmaxnreg: a warpgroup gives registers back, or takes those that others have given.
INSTRUCTION_OF(SM_90A, give_registers, "setmaxnreg.dec.sync.aligned.u32 %0;")
INSTRUCTION_OF(SM_90A, take_registers, "setmaxnreg.inc.sync.aligned.u32 %0;")

// A tile in shared memory: its address, 1024 bytes from 8 rows to the next 8, the 128-byte swizzle.
// 16 columns further are 32 bytes, 2 in the descriptor.
__device__ inline uint64_t describe(uint32_t tile) {
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
#define TEN(t)                                                                                     \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t \
  "9, "
#define FIFTY(a, b, c, d, e) TEN(a) TEN(b) TEN(c) TEN(d) TEN(e)
#define F8(i)                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
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
WGMMA(32, TEN() "%10, %11, %12, %13, %14, %15", 16, 17, 18, 19, 20, 21, 22, F8(0), F8(8))
WGMMA(64, TEN() TEN(1) TEN(2) "%30, %31", 32, 33, 34, 35, 36, 37, 38, F32(0))
WGMMA(96, TEN() TEN(1) TEN(2) TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47", 48, 49, 50, 51, 52,
      53, 54, F32(0), F8(32), F8(40))
WGMMA(128, FIFTY(, 1, 2, 3, 4) TEN(5) "%60, %61, %62, %63", 64, 65, 66, 67, 68, 69, 70, F32(0),
      F32(32))
WGMMA(160, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79", 80,
      81, 82, 83, 84, 85, 86, F32(0), F32(32), F8(64), F8(72))
WGMMA(192, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95", 96, 97,
      98, 99, 100, 101, 102, F32(0), F32(32), F32(64))
WGMMA(224, FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TEN(10) "%110, %111", 112, 113, 114, 115, 116,
      117, 118, F32(0), F32(32), F32(64), F8(96), F8(104))
WGMMA(256,
      FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TEN(10)
          TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127",
      128, 129, 130, 131, 132, 133, 134, F32(0), F32(32), F32(64), F32(96))

// wgmma.fence, commit_group, wait_group: before the first product of a group, after its last one,
// and until all but the last kNumber groups are done. The sums must not be touched before: ptxas
// would serialize the products (warning C7510).
INSTRUCTION(SM_90A, begin_products, "wgmma.fence.sync.aligned;")
INSTRUCTION(SM_90A, commit_products, "wgmma.commit_group.sync.aligned;")
INSTRUCTION_OF(SM_90A, wait_products, "wgmma.wait_group.sync.aligned %0;")

// No instruction: after wait_products<0>, the compiler must not move a use of d before it.
template <int kSums>
__device__ inline void release(float (&d)[kSums]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}
