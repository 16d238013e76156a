// Copies in the background: cp.async, 16 bytes for a thread; TMA, a whole tile for one thread;
// st.async, a number to another block of the cluster. And prefetches.
#pragma once
#include <cuda.h>
#include <stdint.h>

#include <cuda/ptx>

#include "common/architecture.cuh"
#include "common/registers.cuh"

namespace ptx = cuda::ptx;

// cp.async: starts a copy of 16 bytes to shared memory, or writes zeros. __pipeline_commit() of
// <cuda_pipeline.h> ends a group; __pipeline_wait_prior(n) waits for all but this thread's last n.
// (__pipeline_memcpy_async() makes two instructions where a condition asks for zeros.)
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

// prefetch: moves a line of 128 bytes into L2. It may do so before wait_on_dependent_grids(): L2
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

// st.async: writes x to the same place in another block, and counts its bytes at a barrier there.
// (cuda::ptx's takes generic addresses: 8 and 16 instructions more in two kernels of
// add_rms_norm/ladder.cu. And it has no v4.)
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
__device__ inline void tma_store_fence() { SM_90A(ptx::fence_proxy_async(ptx::space_shared)); }

// The copy back. Elements outside of the tensor are not written.
__device__ inline void store_tile(const CUtensorMap& map, const void* from, const int (&at)[2]) {
  SM_90A(ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, at, from),
         ptx::cp_async_bulk_commit_group());
}

// cp.async.bulk.wait_group: until all but kNumber stores of this thread have read shared memory.
template <int kNumber>
__device__ inline void tma_store_wait() {
  SM_90A(ptx::cp_async_bulk_wait_group_read(ptx::n32_t<kNumber>()));
}
