// y = x * W^T for few rows of x, with mma.sync. The first shape runs on any GPU from sm_80 on, the
// others on compute capability 9.0.
//
// A warp computes up to kStrips strips of 16 rows of W for kTilesOfX * 8 rows of x, over its share
// of K. Codes, scales, zeros and x are copied by cp.async into a pipeline of kStages stages, each
// for one group of 128 columns. A block has kWarpsAlongW warps along W's rows, which share x, and
// kWarpsAlongK warps along K, whose sums are added at the end; so are those of the blocks of a
// cluster. Every order is fixed: no atomics.
//
// The strips are dealt out evenly: each tile has as many, or one more. Tiles of 64 rows of W would
// leave some multiprocessors idle at the end.
#pragma once
#include "few_pipeline.cuh"
#include "norm.cuh"

#include <cooperative_groups.h>

namespace four_bit {

// The main loop: adds all groups of the warp, of one tile. An empty pipeline is filled first: the
// steps below 0 only start copies.
template <typename T, typename S>
__device__ inline void add_groups(Accumulators<S>& sums, WarpPipeline<T, S>& pipeline, int strips,
                                  bool is_exact) {
  const WarpWork<S>& work = pipeline.work;
#pragma unroll 1
  for (int step = pipeline.is_empty ? 1 - S::kStages : 0; step < work.steps; ++step) {
    if (step >= 0) {
      __pipeline_wait_prior(S::kStages - 2);
      if constexpr (S::kWarpsAlongW > 1)
        named_barrier_sync(work.warp_k + 1,
                           32 * S::kWarpsAlongW);  // the warps that share x have copied it
      else
        __syncwarp();  // x and scales were copied by other lanes
    }
    const bool is_mine = S::kWarpsAlongW == 1 || step < work.my_groups;
    if (is_mine) pipeline.start_copy();
    if (step < 0 || !is_mine) continue;  // it only fills the pipeline, or has no group left
    if (!S::kIsConvertedFirst && is_exact)
      group_of_many<T, S, S::kStrips>(sums, pipeline.oldest_stage());
    else
      group_of<T, S>(sums, pipeline.oldest_stage(), strips);
  }
  pipeline.is_empty = false;
}

// The sums of a warp's strips of a tile. If the fast way of few rows has lost one to an infinite
// intermediate, the whole block starts the tile again, exactly.
template <typename T, typename S>
__device__ inline void add_tile(Accumulators<S>& sums, WarpPipeline<T, S>& pipeline, int tile) {
  constexpr int kCount = S::kStrips * S::kTilesOfX * 4;
  float* const flat = &sums[0][0][0];
  const int strips = pipeline.work.strips_of(tile);
  bool is_exact = S::kIsConvertedFirst;
#pragma unroll 1
  while (true) {
    add_groups(sums, pipeline, strips, is_exact);
    bool is_lost = false;
    for (int i = 0; i < kCount; ++i) is_lost |= !isfinite(flat[i]);
    if (!S::kIsPersistent) __pipeline_wait_prior(0);
    // A barrier, too: all have read their stages, and what they finished before.
    if (!__syncthreads_or(is_lost && !is_exact)) return;
    for (int i = 0; i < kCount; ++i) flat[i] = 0;
    __pipeline_wait_prior(0);
    __syncthreads();
    pipeline.next_tile = tile;
    pipeline.begin_tile();
    pipeline.stage = 0;
    pipeline.is_empty = true;
    is_exact = true;
  }
}

// A tile's sums in shared memory, a part for each of the warps along K.
template <typename S>
struct SharedSums {
  float* all;
  int first, pairs;  // the tile's first row of W, and its pairs of neighbouring rows

  __device__ void store(const Accumulators<S>& sums, const WarpWork<S>& work, int tile) const {
    const int strips = work.strips_of(tile);
    const int own = work.first_strip(tile, work.warp_w) * kTile - first;
#pragma unroll
    for (int r = 0; r < S::kStrips; ++r) {
      for (int i = 0; i < S::kTilesOfX && r < strips; ++i) {
        float* to = all + (work.warp_k * S::kBatch + i * 8 + 2 * work.t) * S::kStride;
        to += own + r * kTile + 2 * work.g;
        *reinterpret_cast<float2*>(to) = {sums[r][i][0], sums[r][i][2]};
        *reinterpret_cast<float2*>(to + S::kStride) = {sums[r][i][1], sums[r][i][3]};
      }
    }
  }
  __device__ float2 of_warps(int m, int pair) const {
    float2 sum = {0, 0};
    for (int i = 0; i < S::kWarpsAlongK; ++i) {
      const float* part = all + (i * S::kBatch + m) * S::kStride + 2 * pair;
      sum = sum + *reinterpret_cast<const float2*>(part);
    }
    return sum;
  }
};

// What a thread finishes: a pair of neighbouring rows of W and a row of x. Each block of a cluster
// owns a part of the pairs.
template <typename S>
struct OwnPair {
  static constexpr int kOwned = S::kRows / 2 / S::kCluster;
  int m, index, pair, row;  // index: of the pair within the block's; row: the first one of W
  bool is_there;

  __device__ OwnPair(const Int4Call& p, const WarpWork<S>& work, const SharedSums<S>& sums, int e)
      : m(e / kOwned), index(e % kOwned), pair(work.rank * kOwned + index) {
    row = sums.first + 2 * pair;
    is_there = m < work.rows_of_x && pair < sums.pairs && row < p.n;
  }
  // Of y's first number.
  __device__ int64_t place(const Int4Call& p, const WarpWork<S>& work) const {
    return static_cast<int64_t>(work.first_m + m) * p.n + row;
  }
  // parts: the sums of the cluster's blocks.
  __device__ float2 join(const SharedSums<S>& sums, const float2* parts) const {
    if constexpr (S::kCluster == 1) return sums.of_warps(m, pair);
    float2 sum = {0, 0};
    for (int i = 0; i < S::kCluster; ++i) sum = sum + parts[(i * S::kBatch + m) * kOwned + index];
    return sum;
  }
};

template <typename T>
__device__ inline float2 add_bias(const Int4Call& p, int row, float2 sum) {
  if (!p.bias) return sum;
  return sum + Half<T>::floats(static_cast<const typename Half<T>::Pair*>(p.bias)[row / 2]);
}

// The sums of a tile of one block become those of the cluster: each block writes those that it does
// not own to the `parts` of the others.
template <typename S>
__device__ inline void exchange(const SharedSums<S>& sums, float2* parts, const WarpWork<S>& work) {
#if __CUDA_ARCH__ >= 900
  constexpr int kPairs = S::kRows / 2, kOwned = OwnPair<S>::kOwned;
  const auto cluster = cooperative_groups::this_cluster();
  cluster_wait();  // all blocks have started
  for (int e = threadIdx.x; e < kPairs * work.rows_of_x; e += S::kThreads) {
    const int m = e / kPairs, pair = e % kPairs;
    float2* to = parts + (work.rank * S::kBatch + m) * kOwned + pair % kOwned;
    *cluster.map_shared_rank(to, pair / kOwned) = sums.of_warps(m, pair);
  }
  cluster.sync();
#endif
}

// 1 / rms of the row of x that this thread finishes. A warp may have several rows.
template <typename S>
__device__ inline float find_own_scale(const Int4Call& p, const WarpWork<S>& work) {
  constexpr int kOwned = OwnPair<S>::kOwned, kRowsOfWarp = kOwned < 32 ? 32 / kOwned : 1;
  const int first = (threadIdx.x - work.lane) / kOwned;
  float scale = 0;
  for (int m = first; m < first + kRowsOfWarp && m < work.rows_of_x; ++m) {
    const float found = find_scale(p, work.first_m + m);
    if (threadIdx.x / kOwned == m) scale = found;
  }
  return scale;
}

// The epilogue of a tile. scale: 1 / rms of the thread's row of x, if that is still to come.
template <typename T, typename S>
__device__ inline void finish_tile(const SharedSums<S>& sums, const float2* parts, float scale,
                                   const Int4Call& p, const WarpWork<S>& work) {
  for (int e = threadIdx.x; e < OwnPair<S>::kOwned * work.rows_of_x; e += S::kThreads) {
    const OwnPair<S> own(p, work, sums, e);
    if (!own.is_there) continue;
    float2 y = own.join(sums, parts);
    if (S::kNorm == Norm::kAfter) y = {y.x * scale, y.y * scale};
    const int64_t place = own.place(p, work);
    y = add_bias<T>(p, own.row, y);
    store(static_cast<T*>(p.y) + (p.is_gated ? place / 2 : place), y, p.is_gated);
  }
}

// The same with a residual. There is a thread for each pair, and all threads call it: 8 neighbours
// have a strip of 16 rows of W.
template <typename T, typename S>
__device__ inline void finish_with_residual(const Addend& addend, const SharedSums<S>& sums,
                                            const float2* parts, const Int4Call& p,
                                            const WarpWork<S>& work) {
  static_assert(OwnPair<S>::kOwned % 8 == 0 && OwnPair<S>::kOwned * S::kBatch <= S::kThreads);
  const OwnPair<S> own(p, work, sums, threadIdx.x);
  float squares = 0;
  if (own.is_there) {
    const float2 y = add_bias<T>(p, own.row, own.join(sums, parts));
    squares = add_to_residual(p, own.place(p, work), y, addend);
  }
  for (int distance = 4; distance > 0; distance /= 2)
    squares += __shfl_xor_sync(~0u, squares, distance);
  if (own.is_there && own.index % 8 == 0) p.next_squares[own.place(p, work) / kStrip] = squares;
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kPerProcessor)
    few_rows(const Int4Call p, const int tiles) {
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
  if (S::kPerProcessor == 1) return;  // plan.h takes such a shape only on an H100 or H200
#endif
  extern __shared__ uint4 memory[];
  const WarpWork<S> work(p, tiles);
  WarpPipeline<T, S> pipeline(p, work, tiles, memory);
  const int first_tile = pipeline.next_tile, step = gridDim.x / S::kCluster;
  pipeline.begin_tile();
#if __CUDA_ARCH__ >= 900
  pipeline.prefetch_first();
#endif
  launch_dependent_grids();
  wait_on_dependent_grids();
  if constexpr (S::kCluster > 1) cluster_arrive();

  float scale = 1;
  if constexpr (S::kNorm == Norm::kAfter) scale = find_own_scale(p, work);
  float2* parts = reinterpret_cast<float2*>(memory + S::kOwnBytes / 16);
  float* all = reinterpret_cast<float*>(memory) + (S::kIsPersistent ? S::kPipelineBytes / 4 : 0);
#pragma unroll 1
  for (int tile = first_tile; tile < tiles; tile += step) {
    const int first = work.first_strip(tile, 0), end = work.first_strip(tile, S::kWarpsAlongW);
    const SharedSums<S> of_tile = {all, first * kTile, (end - first) * (kTile / 2)};
    Addend addend;
    if constexpr (S::kNorm == Norm::kBefore) {
      const OwnPair<S> own(p, work, of_tile, threadIdx.x);
      if (own.is_there) addend = load_addend(p, own.place(p, work), own.row);
    }
    Accumulators<S> sums = {};
    add_tile(sums, pipeline, tile);
    of_tile.store(sums, work, tile);
    __syncthreads();
    if constexpr (S::kCluster > 1) exchange(of_tile, parts, work);
    if constexpr (S::kNorm == Norm::kBefore)
      finish_with_residual<T>(addend, of_tile, parts, p, work);
    else
      finish_tile<T>(of_tile, parts, scale, p, work);
    if (!S::kIsPersistent) break;
  }
}

}  // namespace four_bit
