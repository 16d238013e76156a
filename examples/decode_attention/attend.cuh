// Attention of one query over a cache of keys and values. docs/17_decode_attention.md explains it.
//
// The query heads that share a key head are the columns of two products by mma.sync: S^T = K Q^T,
// whose rows are 16 cached tokens, and O^T = V^T P, whose rows are 16 columns of the values. A warp
// takes every n-th tile of tokens; cp.async copies them into a ring of its own. The parts of warps,
// and of blocks (by a cluster or by a second kernel), are joined in a fixed order, so two runs give
// the same bits.
#pragma once
#include <cooperative_groups.h>

#include "tile.cuh"

namespace decode {

// The parts of a block's warps: their sums lie in the place of their rings. And what a block of a
// cluster gets from the others.
template <typename S>
struct Parts {
  static constexpr int kQuads = S::D / 4;                                       // of four columns
  float2 stats[kMaxWarps][S::kHeads], stats_of_blocks[kMaxCluster][S::kHeads];  // max, weight
  float4 sums_of_blocks[S::kHeads * kQuads];
  __device__ static float4* sums(char* memory, int warp, int head) {
    return reinterpret_cast<float4*>(memory + warp * kRing) + head * (kQuads + 1);  // banks differ
  }
};

template <typename S>
__device__ inline void store_part(Parts<S>& parts, char* memory, Lane<S>& my, const Place& at) {
  for (int n = 0; n < S::NT; ++n) {
    for (int i = 0; i < S::kOwn; ++i) {
      for (int j = 4; j < 32; j *= 2) my.weight[n][i] += __shfl_xor_sync(~0u, my.weight[n][i], j);
      const int head = n * 8 + i * 4 + at.t;
      if (head >= at.group) continue;
      if (at.g == 0) parts.stats[at.warp][head] = {my.max[n][i], my.weight[n][i]};
      // With int8, load_matrices() delivers columns in pairs, so the sums are of other columns.
      float* to = reinterpret_cast<float*>(parts.sums(memory, at.warp, head));
      to += S::is_int8 ? 2 * at.g : at.g;
      for (int j = 0; j < S::kSteps; ++j) {
        to[j * 16] = my.sums[j][n][i];
        to[j * 16 + (S::is_int8 ? 1 : 8)] = my.sums[j][n][i + 2];
      }
    }
  }
}

// Joins the parts of the warps, four columns of a head for each thread. The result goes to memory,
// to scratch memory for the second kernel, or to the block of the cluster that finishes it: each
// finishes every splits-th (a power of 2) of the items.
template <typename S>
__device__ inline void join_warps(Parts<S>& parts, char* memory, const AttendCall& p,
                                  const Place& at) {
  constexpr int kQuads = Parts<S>::kQuads;
  const int splits = p.plan.splits, shift = __ffs(splits) - 1, items = at.group * kQuads;
  for (int e = threadIdx.x; e < items; e += blockDim.x) {
    const int head = e / kQuads, quad = e % kQuads;
    const Part all = join_parts<kMaxWarps>(
        at.warps, [&](int i) { return parts.stats[i][head]; },
        [&](int i) { return parts.sums(memory, i, head)[quad]; });
    if (splits == 1) {
      finish<typename S::Query, S::D>(p, at.row, at.key_head * at.group + head, quad, all);
    } else if (!p.plan.is_cluster) {
      const int64_t part = static_cast<int64_t>(blockIdx.x) * at.group + head;
      sums_of(p)[part * kQuads + quad] = all.sum;
      if (quad == 0) stats_of(p)[part] = {all.max, all.weight};
#if __CUDA_ARCH__ >= 900
    } else {
      const auto cluster = cooperative_groups::this_cluster();
      float4* const to = &parts.sums_of_blocks[at.rank * (items >> shift) + (e >> shift)];
      *cluster.map_shared_rank(to, e & (splits - 1)) = all.sum;
      if (quad < splits)
        *cluster.map_shared_rank(&parts.stats_of_blocks[at.rank][head], quad) = {all.max,
                                                                                 all.weight};
#endif
    }
  }
}

template <typename S>
__device__ inline void join_blocks(const Parts<S>& parts, const AttendCall& p, const Place& at) {
  constexpr int kQuads = Parts<S>::kQuads;
  const int splits = p.plan.splits, shift = __ffs(splits) - 1, items = at.group * kQuads;
  for (int i = threadIdx.x; i < items >> shift; i += blockDim.x) {
    const int e = (i << shift) + at.rank, head = e / kQuads;
    const Part all = join_parts<kMaxCluster>(
        splits, [&](int j) { return parts.stats_of_blocks[j][head]; },
        [&](int j) { return parts.sums_of_blocks[j * (items >> shift) + i]; });
    finish<typename S::Query, S::D>(p, at.row, at.key_head * at.group + head, e % kQuads, all);
  }
}

template <typename S>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) attend(const __grid_constant__ AttendCall p) {
  extern __shared__ __align__(256) char memory[];
  __shared__ Parts<S> parts;
  const Place at(p);
  char* const ring = memory + at.warp * kRing;
  Copies<S> copies(p, at, ring);
  start_next_kernel();
  prefetch_first<S>(p, at);
  wait_for_kernel_before();
  if (p.plan.is_cluster) arrive_at_cluster();
  const int given = p.lengths[at.row];
  Lane<S> my;
  load_query(my, p, at);  // before the copies, which fill all queues
  keep_order();
  const int length = min(max(given, 0), p.capacity), tiles = divide_up(length, S::kTokens);
#pragma unroll 1
  for (int i = 0; i < S::kStages; ++i) copies.start(i, tiles);
  prepare_query(my, p.scale, at.first < tiles ? kLowest : -INFINITY, at.t);

  int stage = 0;
  for (int i = at.first; i < tiles; i += at.step) {
    __pipeline_wait_prior(S::kStages - 1);
    __syncwarp();  // the other lanes' copies
    char* const slot = ring + stage * S::kSlot;
    const uint32_t keys = copies.ring + stage * S::kSlot, values = keys + S::kTokens * S::kRow;
    Tile<S> tile;
    tile.left = length - i * S::kTokens;
    load_rows<false>(tile, keys, at.lane);
    multiply_keys(tile, my);
    load_scales(tile, slot, at.g);
    clear_values<S>(slot, tile.left, at.lane);
    load_rows<true>(tile, values, at.lane);
    convert_values(tile, 0);  // while the scores are computed
    __syncwarp();             // the slot is free
    copies.start(stage, tiles);
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    if (scale_scores(tile, my, at.g)) raise_maximum(my, tile);
    multiply_values(my, tile);
  }

  __pipeline_wait_prior(0);
  __syncwarp();
  store_part(parts, memory, my, at);
  __syncthreads();
  if (p.plan.is_cluster) wait_for_cluster();
  join_warps(parts, memory, p, at);
#if __CUDA_ARCH__ >= 900
  if (!p.plan.is_cluster) return;
  cooperative_groups::this_cluster().sync();
  join_blocks(parts, p, at);
#endif
}

}  // namespace decode
