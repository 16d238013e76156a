// Waits: for a kernel, for some of a block's warps, for the blocks of a cluster, for copies.
#pragma once
#include <stdint.h>

#include <cuda/ptx>

#include "common/architecture.cuh"
#include "common/registers.cuh"

namespace ptx = cuda::ptx;

// griddepcontrol: the next kernel may start while this one runs, and then waits until this one has
// ended. The launch must allow it (launch.cuh).
__device__ inline void launch_dependent_grids() {
  SM_90(cudaTriggerProgrammaticLaunchCompletion());
}
__device__ inline void wait_on_dependent_grids() { SM_90(cudaGridDependencySynchronize()); }

// bar.sync: a barrier for some of the block's warps, `threads` together. __syncthreads() has id 0.
// (cuda::barrier is an mbarrier in shared memory.)
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// barrier.cluster: a block arrives, without waiting for its writes; and waits for all blocks of the
// cluster. (cuda::ptx's are not .aligned, and the compiler may move accesses over its relaxed
// arrival. That of cooperative_groups also publishes the writes.)
__device__ inline void cluster_arrive() {
  SM_90(asm volatile("barrier.cluster.arrive.relaxed.aligned;" :: : "memory"));
}
__device__ inline void cluster_wait() {
  SM_90(asm volatile("barrier.cluster.wait.aligned;" :: : "memory"));
}

// All blocks of the cluster meet, and see what the others have written.
__device__ inline void cluster_sync() {
  SM_90(ptx::barrier_cluster_arrive());
  SM_90(ptx::barrier_cluster_wait());
}

// mbarrier.init: a phase ends when `count` threads have arrived and all expected bytes have come.
__device__ inline void init_barrier(uint64_t* barrier, int count) {
  SM_90(ptx::mbarrier_init(barrier, count));
}

// fence.mbarrier_init: makes new barriers visible to TMA and to the other blocks of the cluster.
__device__ inline void fence_barrier_init() {
  SM_90(ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster));
}

// mbarrier.arrive.
__device__ inline void arrive(uint64_t* barrier) {
  SM_90(ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier));
}

// mbarrier.arrive at the same barrier in another block of the cluster. (cuda::ptx's would also wait
// for all writes of this thread to be seen there.)
__device__ inline void arrive_at(uint64_t* barrier, int block) {
  const uint32_t there = address_in(block, barrier);
  SM_90(asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory"));
}

// mbarrier.arrive.expect_tx: arrives, and the phase waits for so many bytes more.
__device__ inline void arrive_and_expect_tx(uint64_t* barrier, int bytes) {
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
