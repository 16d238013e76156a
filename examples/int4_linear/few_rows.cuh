// y = x * W^T for few rows of x, with mma.sync, on any GPU from sm_80 on.
//
// A warp computes up to R pieces of 16 rows of W for NT * 8 rows of x, over its share of K. Codes,
// scales, zeros and x are copied by cp.async into a ring of STAGES slots, each for one group of 128
// columns. A block has WR warps along W's rows, which share x, and WK warps along K, whose sums are
// added at the end; so are those of the blocks of a cluster. Every order is fixed: no atomics.
//
// The pieces are dealt out evenly: each tile has as many, or one more. Tiles of 64 rows of W would
// leave some multiprocessors idle at the end.
#pragma once
#include "few_copies.cuh"

#include <cooperative_groups.h>

namespace four_bit {

// Adds all groups of the warp, of one tile. Where the ring is empty it is filled first.
template <typename T, typename S>
__device__ inline void add_groups(float (&sums)[S::R][S::NT][4], Copies<T, S>& copies, int pieces,
                                  bool is_empty, bool is_exact) {
  const Place<S>& at = copies.at;
#pragma unroll 1
  for (int i = is_empty ? 1 - S::STAGES : 0; i < at.turns; ++i) {
    if (i >= 0) {
      __pipeline_wait_prior(S::STAGES - 2);
      if constexpr (S::WR > 1)
        sync_some(at.wk + 1, 32 * S::WR);  // the WR warps of this share of K have copied x
      else
        __syncwarp();  // x and scales were copied by other lanes
    }
    if (i < at.my_groups) copies.start();
    if (i < 0 || i >= at.my_groups) continue;
    if (S::NT <= 2 && is_exact)
      group_of_many<T, S, S::R>(sums, copies.oldest());
    else
      group_of<T, S>(sums, copies.oldest(), pieces);
  }
}

// The sums of a warp's pieces of a tile. If the fast way of few rows has lost one to an infinite
// intermediate, the whole block starts the tile again, exactly.
template <typename T, typename S>
__device__ inline void add_tile(float (&sums)[S::R][S::NT][4], Copies<T, S>& copies, int tile,
                                bool is_empty) {
  constexpr int kCount = S::R * S::NT * 4;
  const int pieces = copies.at.pieces_of(tile);
#pragma unroll 1
  for (bool is_exact = S::NT > 2;; is_exact = true) {
    add_groups(sums, copies, pieces, is_empty, is_exact);
    bool is_lost = false;
    for (int i = 0; i < kCount; ++i) is_lost |= !isfinite((&sums[0][0][0])[i]);
    if (!S::kLoops) __pipeline_wait_prior(0);
    // A barrier, too: all have read their slots, and what they finished before.
    if (!__syncthreads_or(is_lost && !is_exact)) return;
    for (int i = 0; i < kCount; ++i) (&sums[0][0][0])[i] = 0;
    __pipeline_wait_prior(0);
    __syncthreads();
    copies.ahead = tile;
    copies.point();
    copies.slot = 0;
    is_empty = true;
  }
}

// A tile's sums in shared memory, a part for each of the WK warps along K.
template <typename S>
struct Sums {
  float* all;
  int first, pairs;  // the tile's first row of W, and its pairs of neighbouring rows

  __device__ void store(const float (&sums)[S::R][S::NT][4], const Place<S>& at, int tile) const {
    const int pieces = at.pieces_of(tile), own = at.first_piece(tile, at.wr) * kTile - first;
#pragma unroll
    for (int r = 0; r < S::R; ++r) {
      for (int i = 0; i < S::NT && r < pieces; ++i) {
        float* to = all + (at.wk * S::kBatch + i * 8 + 2 * at.t) * S::kStride;
        to += own + r * kTile + 2 * at.g;
        *reinterpret_cast<float2*>(to) = {sums[r][i][0], sums[r][i][2]};
        *reinterpret_cast<float2*>(to + S::kStride) = {sums[r][i][1], sums[r][i][3]};
      }
    }
  }
  __device__ float2 of_warps(int m, int pair) const {
    float2 sum = {0, 0};
    for (int i = 0; i < S::WK; ++i) {
      const float* part = all + (i * S::kBatch + m) * S::kStride + 2 * pair;
      sum = sum + *reinterpret_cast<const float2*>(part);
    }
    return sum;
  }
};

// Each block of a cluster finishes a part of the rows: the others write their sums to it.
template <typename T, typename S>
__device__ inline void finish_cluster(const Sums<S>& sums, float2* parts, const Int4Call& p,
                                      const Place<S>& at) {
#if __CUDA_ARCH__ >= 900
  constexpr int kPairs = S::kRows / 2;
  const int shift = __ffs(kPairs) - 1 - at.log_splits, owned = 1 << shift;
  const auto cluster = cooperative_groups::this_cluster();
  wait_for_cluster();  // all blocks have started
  for (int e = threadIdx.x; e < kPairs * at.rows_of_x; e += S::kThreads) {
    const int m = e / kPairs, pair = e % kPairs;
    float2* to = parts + ((at.rank * S::kBatch + m) << shift) + (pair & (owned - 1));
    *cluster.map_shared_rank(to, pair >> shift) = sums.of_warps(m, pair);
  }
  cluster.sync();
  for (int e = threadIdx.x; e < at.rows_of_x << shift; e += S::kThreads) {
    const int m = e >> shift, own = e & (owned - 1), pair = at.rank * owned + own;
    float2 sum = {0, 0};
#pragma unroll
    for (int i = 0; i < kMostSplits; ++i)  // all loads first, so that they wait together
      if (i >> at.log_splits == 0) sum = sum + parts[((i * S::kBatch + m) << shift) + own];
    if (pair < sums.pairs) finish<T>(p, at.m0 + m, sums.first + 2 * pair, sum);
  }
#endif
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::BLOCKS)
    few_rows(const Int4Call p, const int tiles, const int log_splits) {
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
  if (S::BLOCKS == 1) return;  // plan.h takes such a shape only on an H100 or H200
#endif
  extern __shared__ uint4 memory[];
  const Place<S> at(p, tiles, log_splits);
  Copies<T, S> copies(p, at, tiles, memory);
  const int first_tile = copies.ahead, step = gridDim.x >> at.log_splits;
  copies.point();
#if __CUDA_ARCH__ >= 900
  copies.prefetch_first();
#endif
  start_next_kernel();
  wait_for_kernel_before();
  if constexpr (S::is_cluster) arrive_at_cluster();

  float* all = reinterpret_cast<float*>(memory) + (S::kLoops ? S::kRing / 4 : 0);
#pragma unroll 1
  for (int tile = first_tile; tile < tiles; tile += step) {
    float sums[S::R][S::NT][4] = {};
    add_tile(sums, copies, tile, tile == first_tile);
    const int first = at.first_piece(tile, 0), end = at.first_piece(tile, S::WR);
    const Sums<S> of_tile = {all, first * kTile, (end - first) * (kTile / 2)};
    of_tile.store(sums, at, tile);
    __syncthreads();
    if constexpr (S::is_cluster) {
      finish_cluster<T>(of_tile, reinterpret_cast<float2*>(memory + S::kOwn / 16), p, at);
    } else {
      constexpr int kPairs = S::kRows / 2;  // at most
      for (int e = threadIdx.x; e < kPairs * at.rows_of_x; e += S::kThreads) {
        const int m = e / kPairs, pair = e % kPairs;
        if (pair < of_tile.pairs)
          finish<T>(p, at.m0 + m, of_tile.first + 2 * pair, of_tile.of_warps(m, pair));
      }
    }
    if (!S::kLoops) break;
  }
}

}  // namespace four_bit
