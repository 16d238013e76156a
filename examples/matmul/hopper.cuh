// Instructions of Hopper (sm_90a), one small function for each: mbarrier (threads wait for copies),
// TMA (copies tiles), wgmma (multiplies tiles). docs/11_matmul.md explains them.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

using bf16 = __nv_bfloat16;

constexpr int kDepth = 64;    // columns of A and B per tile: 128 bytes, one period of the swizzle
constexpr int kHeight = 128;  // rows of A per tile: 64 for each of two warpgroups

// Elsewhere these compile to a trap; the launchers ask for the GPU's architecture first.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER(...) asm volatile(__VA_ARGS__)
#else
#define HOPPER(...) __trap()
#endif

__device__ inline uint32_t address(const void* x) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(x));
}

// mbarrier: a phase ends when `count` threads have arrived and all expected bytes have come.
__device__ inline void init_barrier(uint64_t* barrier, int count) {
  HOPPER("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count));
}

// Makes new barriers visible to TMA and to the other blocks of the cluster.
__device__ inline void publish_barriers() {
  HOPPER("fence.mbarrier_init.release.cluster;" :: : "memory");
}

__device__ inline void arrive(uint64_t* barrier) {
  HOPPER("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

// Arrives at the same barrier in the shared memory of another block of the cluster.
__device__ inline void arrive_at(uint64_t* barrier, int block) {
  HOPPER(
      "{.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(address(barrier)),
      "r"(block) : "memory");
}

__device__ inline void expect_bytes(uint64_t* barrier, int bytes) {
  HOPPER("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)),
         "r"(bytes) : "memory");
}

// Waits for the end of a phase. parity: 0 for a barrier's first phase, 1 for the second, 0, ...
// A fresh barrier lets parity 1 pass. (A __trap() for hangs in this loop would serialize wgmma.)
__device__ inline void wait(uint64_t* barrier, int parity) {
  uint32_t is_done = 1;
  do {
    HOPPER(
        "{.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;}" : "=r"(is_done) : "r"(address(barrier)),
        "r"(parity) : "memory");
  } while (!is_done);
}

__device__ inline void sync_cluster() {
  HOPPER("barrier.cluster.arrive;\nbarrier.cluster.wait;" :: : "memory");
}

// TMA: one thread starts the copy of a whole tile. Elements outside of the matrix are read as zero,
// and are not written. The bytes of a load count at `barrier`, all of the tile's in any case.
__device__ inline void load_tile(void* to, const CUtensorMap& map, uint64_t* barrier, int column,
                                 int row) {
  HOPPER(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(address(barrier)) : "memory");
}

// The same into all blocks of `mask`, at the same place; each block's own barrier counts the bytes.
__device__ inline void load_tile_to(uint16_t mask, void* to, const CUtensorMap& map,
                                    uint64_t* barrier, int column, int row) {
  HOPPER(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(address(barrier)), "h"(mask) : "memory");
}

__device__ inline void store_tile(const CUtensorMap& map, const void* from, int column, int row) {
  HOPPER(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(column), "r"(row), "r"(address(from)) : "memory");
}

// Until all but the last kLeft stores of this thread have read shared memory.
template <int kLeft>
__device__ inline void wait_stores() {
  HOPPER("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

// wgmma: d += a b^T for 64 rows of a and `width` of b, 16 columns of each, by 4 warps together. A
// descriptor names a tile in shared memory: its address, 1024 bytes from 8 rows to the next 8, the
// 128-byte swizzle. 16 columns further are 32 bytes, 2 in the descriptor.
__device__ inline uint64_t describe(const bf16* tile) {
  return (address(tile) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define TEN(t)                                                                                     \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t \
  "9, "
#define F8(i)                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32(i) F8(i), F8(i + 8), F8(i + 16), F8(i + 24)
#define WGMMA(width, registers, a_name, b_name, add_name, ...)                              \
  __device__ inline void wgmma(float (&d)[width / 2], uint64_t a, uint64_t b, int add) {    \
    HOPPER("{.reg .pred p;\nsetp.ne.b32 p, " add_name                                       \
           ", 0;\nwgmma.mma_async.sync.aligned.m64n" #width "k16.f32.bf16.bf16 {" registers \
           "}, " a_name ", " b_name ", p, 1, 1, 0, 0;}" : __VA_ARGS__ : "l"(a),             \
           "l"(b), "r"(add));                                                               \
  }
#define FIFTY(a, b, c, d, e) TEN(a) TEN(b) TEN(c) TEN(d) TEN(e)
WGMMA(64, TEN() TEN(1) TEN(2) "%30, %31", "%32", "%33", "%34", F32(0))
WGMMA(128, FIFTY(, 1, 2, 3, 4) TEN(5) "%60, %61, %62, %63", "%64", "%65", "%66", F32(0), F32(32))
WGMMA(192, FIFTY(, 1, 2, 3, 4) TEN(5) TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95", "%96",
      "%97", "%98", F32(0), F32(32), F32(64))
WGMMA(256,
      FIFTY(, 1, 2, 3, 4) FIFTY(5, 6, 7, 8, 9) TEN(10)
          TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127",
      "%128", "%129", "%130", F32(0), F32(32), F32(64), F32(96))

// Starts d = a b^T, or d += a b^T, for tiles of kDepth columns. d must not be touched before the
// wait: ptxas would serialize the products (warning C7510).
template <int kSums>
__device__ inline void start_product(float (&d)[kSums], const bf16* a, const bf16* b,
                                     bool is_first) {
  HOPPER("wgmma.fence.sync.aligned;" :: : "memory");
#pragma unroll
  for (int i = 0; i < kDepth / 16; ++i) {
    wgmma(d, describe(a) + 2 * i, describe(b) + 2 * i, i > 0 || !is_first);
  }
  HOPPER("wgmma.commit_group.sync.aligned;" :: : "memory");
}

// Until all but the last kLeft products of start_product() are done.
template <int kLeft>
__device__ inline void wait_products() {
  HOPPER("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// After wait_products<0>: the compiler must not move a use of d before the wait.
template <int kSums>
__device__ inline void release(float (&d)[kSums]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}

inline const char* text(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

inline int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

inline int device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, which, device);
  return value;
}

inline bool is_hopper() { return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

// How TMA finds tiles of box_rows x 64 in a row-major matrix. Returns NULL or an error message.
inline const char* describe_matrix(CUtensorMap* map, const void* data, int64_t rows,
                                   int64_t columns, int box_rows) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || columns % 8 != 0) {
    return "TMA needs rows and pointers that are multiples of 16 bytes";
  }
  // Asked of the runtime, so that nothing has to be linked against the driver.
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                     &result);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (!encode) return "the driver is too old: no cuTensorMapEncodeTiled";
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows)};
  const cuuint64_t row_bytes[] = {cuuint64_t(columns) * sizeof(bf16)};
  const cuuint32_t box[] = {kDepth, cuuint32_t(box_rows)}, steps[] = {1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, row_bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? nullptr : "cuTensorMapEncodeTiled refused the matrix";
}
