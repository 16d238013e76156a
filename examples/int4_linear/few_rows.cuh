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
                                  bool is_exact) {
  const Place<S>& at = copies.at;
#pragma unroll 1
  for (int i = copies.is_empty ? 1 - S::STAGES : 0; i < at.turns; ++i) {
    if (i >= 0) {
      __pipeline_wait_prior(S::STAGES - 2);
      if constexpr (S::WR > 1)
        sync_some(at.wk + 1, 32 * S::WR);  // the WR warps of this share of K have copied x
      else
        __syncwarp();  // x and scales were copied by other lanes
    }
    const bool is_mine = S::WR == 1 || i < at.my_groups;
    if (is_mine) copies.start();
    if (i < 0 || !is_mine) continue;
    if (S::NT <= 2 && is_exact)
      group_of_many<T, S, S::R>(sums, copies.oldest());
    else
      group_of<T, S>(sums, copies.oldest(), pieces);
  }
  copies.is_empty = false;
}

// The sums of a warp's pieces of a tile. If the fast way of few rows has lost one to an infinite
// intermediate, the whole block starts the tile again, exactly.
template <typename T, typename S>
__device__ inline void add_tile(float (&sums)[S::R][S::NT][4], Copies<T, S>& copies, int tile) {
  constexpr int kCount = S::R * S::NT * 4;
  const int pieces = copies.at.pieces_of(tile);
#pragma unroll 1
  for (bool is_exact = S::NT > 2;; is_exact = true) {
    add_groups(sums, copies, pieces, is_exact);
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
    copies.is_empty = true;
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

// Adds the bias to the sums of rows `row` (even) and `row` + 1 of W for row m of x. Stores them.
template <typename T>
__device__ inline void finish(const Int4Call& p, int m, int row, float2 sum) {
  if (row >= p.n) return;
  if (p.bias) {
    const auto bias = static_cast<const typename Half<T>::Pair*>(p.bias)[row / 2];
    sum = sum + Half<T>::floats(bias);
  }
  const int64_t place = static_cast<int64_t>(m) * p.n + row;
  store(static_cast<T*>(p.y) + (p.is_gated ? place / 2 : place), sum, p.is_gated);
}

// Finishes a tile. Each block of a cluster has a part of the rows, `kOwned` pairs: the others write
// their sums of these to its `parts`.
template <typename T, typename S>
__device__ inline void finish_tile(const Sums<S>& sums, float2* parts, const Int4Call& p,
                                   const Place<S>& at) {
  constexpr int kPairs = S::kRows / 2, kOwned = kPairs / S::CLUSTER;
#if __CUDA_ARCH__ >= 900
  if constexpr (S::CLUSTER > 1) {
    const auto cluster = cooperative_groups::this_cluster();
    wait_for_cluster();  // all blocks have started
    for (int e = threadIdx.x; e < kPairs * at.rows_of_x; e += S::kThreads) {
      const int m = e / kPairs, pair = e % kPairs;
      float2* to = parts + (at.rank * S::kBatch + m) * kOwned + pair % kOwned;
      *cluster.map_shared_rank(to, pair / kOwned) = sums.of_warps(m, pair);
    }
    cluster.sync();
  }
#endif
  for (int e = threadIdx.x; e < kOwned * at.rows_of_x; e += S::kThreads) {
    const int m = e / kOwned, own = e % kOwned, pair = at.rank * kOwned + own;
    if (pair >= sums.pairs) continue;
    float2 sum = {0, 0};
    if constexpr (S::CLUSTER == 1)
      sum = sums.of_warps(m, pair);
    else
      for (int i = 0; i < S::CLUSTER; ++i) sum = sum + parts[(i * S::kBatch + m) * kOwned + own];
    finish<T>(p, at.m0 + m, sums.first + 2 * pair, sum);
  }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::BLOCKS)
    few_rows(const Int4Call p, const int tiles) {
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
  if (S::BLOCKS == 1) return;  // plan.h takes such a shape only on an H100 or H200
#endif
  extern __shared__ uint4 memory[];
  const Place<S> at(p, tiles);
  Copies<T, S> copies(p, at, tiles, memory);
  const int first_tile = copies.ahead, step = gridDim.x / S::CLUSTER;
  copies.point();
#if __CUDA_ARCH__ >= 900
  copies.prefetch_first();
#endif
  start_next_kernel();
  wait_for_kernel_before();
  if constexpr (S::CLUSTER > 1) arrive_at_cluster();

  float* all = reinterpret_cast<float*>(memory) + (S::kLoops ? S::kRing / 4 : 0);
#pragma unroll 1
  for (int tile = first_tile; tile < tiles; tile += step) {
    float sums[S::R][S::NT][4] = {};
    add_tile(sums, copies, tile);
    const int first = at.first_piece(tile, 0), end = at.first_piece(tile, S::WR);
    const Sums<S> of_tile = {all, first * kTile, (end - first) * (kTile / 2)};
    of_tile.store(sums, at, tile);
    __syncthreads();
    finish_tile<T>(of_tile, reinterpret_cast<float2*>(memory + S::kOwn / 16), p, at);
    if (!S::kLoops) break;
  }
}

}  // namespace four_bit
