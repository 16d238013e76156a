// A sum that climbs from thread to warp, from warp to block, and from block to cluster; and before
// that, the early start of a kernel.
#pragma once
#include "common/instructions.cuh"
#include "plan.h"

constexpr int kMostBlocks = 16;  // in a cluster
#if __CUDA_ARCH__ == 750
constexpr int kResidentThreads = 1024;  // on a multiprocessor
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1100
constexpr int kResidentThreads = 1536;
#else
constexpr int kResidentThreads = 2048;
#endif

// Programmatic dependent launch, from sm_90 on: while the last blocks of one kernel run, those of
// the next one may already start and wait here, before they touch memory, until the first kernel
// has ended. It hides the 0.6 us that a launch costs on the GPU.
__device__ inline void wait_for_previous() {
  wait_on_dependent_grids();
  launch_dependent_grids();
}

// Before that wait, with few rows: the next kernel may start now, as it waits for the end of this
// one anyway. And a value moves into the L2 cache; it is not looked at, so this is right even if
// the kernel before is still writing it.
__device__ inline void start_next_and_prefetch(const void* from) {
#if __CUDA_ARCH__ >= 900
  launch_dependent_grids();
  prefetch(from);
#endif
}

// Shuffles pass registers from thread to thread. All 32 threads get the sum, and the same bits.
// With fewer lanes (a power of two), each group of that many neighbours gets its own sum.
template <typename F>
__device__ inline F sum_over_warp(F x, int lanes = 32) {
  for (int distance = 16; distance > 0; distance /= 2) {
    if (distance < lanes) x += __shfl_xor_sync(~0u, x, distance);
  }
  return x;
}

template <typename F>
__device__ inline F sum_of_array(const F* numbers, int count) {
  F x = 0;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < count; i += 32) x += numbers[i];
  return sum_over_warp(x);
}

// The sum over the blockDim.x threads of a row; a block may have several rows, along y. Each warp
// leaves one number in shared memory, and adds all of them after the barrier, in the same order.
// All threads of the block must call it. The next call needs other shared memory: a fast warp would
// overwrite what a slow one has yet to read.
// kMayBeShort: a row may have fewer threads than a warp.
template <bool kMayBeShort = false, typename F>
__device__ inline F sum_over_block(F x, F* shared) {
  x = kMayBeShort ? sum_over_warp(x, blockDim.x) : sum_over_warp(x);
  const int warps = blockDim.x / 32;
  if (warps <= 1) return x;
  F* row = shared + threadIdx.y * warps;
  if (threadIdx.x % 32 == 0) row[threadIdx.x / 32] = x;
  __syncthreads();
  return sum_of_array(row, warps);
}

// Adds all rows of an array in shared memory, [rows, width], into the first: the upper half to the
// lower half, and so on. The first barrier: all numbers are written. The one after each step: its
// sums are complete before other threads, in the next step or after the call, read them.
__device__ inline void add_rows(float* numbers, int rows, int width) {
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
  __syncthreads();
  for (int half; rows > 1; rows = half) {
    half = (rows + 1) / 2;
    for (int i = thread; i < (rows - half) * width; i += threads)
      numbers[i] += numbers[i + half * width];
    __syncthreads();
  }
}

// The sum over a row that gridDim.y blocks share. From sm_90 on, up to 16 blocks can be launched as
// a cluster: they run at the same time and may write into each other's shared memory. Each warp
// sends its number to every block; st.async counts the bytes that have arrived on a barrier in that
// block, which its threads watch. (cooperative_groups' cluster.sync() would also wait for all loads
// and stores in flight: no row could be fetched during the sum over the one before it.)
struct RowSums {
  float warp_sums[2][kMostBlocks * kMostThreads / 32];
  uint64_t arrived[2];
};

// Every thread calls both once: the first early, the second before the first sum, when the other
// blocks must have started and prepared their barriers.
__device__ inline void prepare_row_sums(RowSums& sums) {
#if __CUDA_ARCH__ >= 900
  if (gridDim.y == 1) return;
  if (threadIdx.x == 0) {
    for (uint64_t& arrived : sums.arrived) init_barrier(&arrived, 1);
    fence_barrier_init();
  }
  __syncwarp();
  cluster_arrive();
#endif
}
__device__ inline void wait_for_other_blocks() {
#if __CUDA_ARCH__ >= 900
  if (gridDim.y > 1) cluster_wait();
#endif
}

// turn: 0, 1, 2, ... counts the rows of a walk. Two stages suffice: a block sends its sums of turn
// 2 when it has received those of turn 1, which each warp sends after it has read those of turn 0.
template <bool kMayBeShort = false>
__device__ inline float sum_over_row(float x, RowSums& sums, int turn) {
  float* warp_sums = sums.warp_sums[turn % 2];
#if __CUDA_ARCH__ >= 900
  if (gridDim.y > 1) {
    const int warps = blockDim.x / 32, count = warps * gridDim.y, lane = threadIdx.x % 32;
    uint64_t* arrived = &sums.arrived[turn % 2];
    x = sum_over_warp(x);
    if (threadIdx.x == 0) arrive_and_expect_tx(arrived, count * sizeof(float));
    if (lane < gridDim.y) {
      send(x, warp_sums + blockIdx.y * warps + threadIdx.x / 32, arrived, lane);
    }
    wait(arrived, turn / 2 % 2);
    return sum_of_array(warp_sums, count);
  }
#endif
  return sum_over_block<kMayBeShort>(x, warp_sums);
}
