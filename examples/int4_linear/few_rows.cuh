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
#include "few_products.cuh"

#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <stddef.h>

namespace four_bit {

template <int R_, int NT_, int WR_, int WK_, int STAGES_, int CLUSTER_, int BLOCKS_>
struct Shape {
  static constexpr int R = R_, NT = NT_, WR = WR_, WK = WK_, STAGES = STAGES_, CLUSTER = CLUSTER_;
  static constexpr int BLOCKS = BLOCKS_;  // that should fit on a multiprocessor
  static constexpr int kRows = WR * R * kTile, kBatch = NT * 8, kThreads = 32 * WR * WK;
  static constexpr int kStride = kRows + 4;  // floats from one row of x to the next: banks differ
  struct Slot {
    Words codes[WR][2][R][32];  // a lane reads what it has copied itself
    Words x[NT][4][32];
    uint4 affine[WR][3 * R];  // scales, then zeros
  };
  static constexpr uint32_t kX = offsetof(Slot, x), kAffine = offsetof(Slot, affine);
  static constexpr int kRing = WK * STAGES * static_cast<int>(sizeof(Slot));
  static constexpr int kSums = WK * kBatch * kStride * 4;
  // Where there is room for both, a block computes several tiles, and copies ahead from tile to
  // tile.
  static constexpr bool kLoops = BLOCKS == 1 && CLUSTER == 1 && kRing + kSums <= 227 * 1024;
  static constexpr int kOwn = kLoops ? kRing + kSums : kRing > kSums ? kRing : kSums;
  static constexpr int kShared = kOwn + (CLUSTER > 1 ? kRows * kBatch * 4 : 0);  // sums of others
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::BLOCKS)
    few_rows(const Int4Call p, const int tiles) {
  using Slot = typename S::Slot;
  constexpr int R = S::R, NT = S::NT, WR = S::WR, WK = S::WK, STAGES = S::STAGES;
  constexpr int CLUSTER = S::CLUSTER;
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
  if (S::BLOCKS == 1) return;  // plan.h takes such a shape only on an H100 or H200
#endif
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32, wr = threadIdx.x / 32 % WR, wk = threadIdx.x / 32 / WR;
  const int g = lane / 4, t = lane % 4;  // as mma.sync numbers its lanes
  const int rank = blockIdx.x % CLUSTER;
  const int m0 = blockIdx.y * S::kBatch, rows_of_x = min(p.batch - m0, S::kBatch);

  // The block's part of K lies in one piece; its warps take the groups in turn.
  const int first_group = groups_of(p) * rank / CLUSTER;
  const int end_group = groups_of(p) * (rank + 1) / CLUSTER, count = end_group - first_group;
  const int my_groups = (count + WK - 1 - wk) / WK;

  // Where the pieces of the `wr`th warp of a tile begin.
  const int share = p.n / kTile / tiles, more = p.n / kTile % tiles;
  const auto first_piece = [&](int tile, int wr) {
    return tile * share + min(tile, more) + (share + (tile < more)) * wr / WR;
  };

  // Addresses in this warp's ring. `slot` is how far the slot lies that is filled next.
  const uint32_t ring = address(memory) + wk * STAGES * static_cast<uint32_t>(sizeof(Slot));
  const bool has_scale = lane < 2 * R;  // these lanes copy scales, the next R zeros
  const uint32_t affine = ring + S::kAffine + wr * R * 48;
  const uint32_t to_codes = keep(ring + wr * R * 1024 + lane * 16);  // where it is read, too
  const uint32_t to_affine = keep(affine + lane * 16);
  const uint32_t to_x = keep(ring + S::kX + wr * 2048 + place_of_x(g, t) * 16);
  const uint32_t x_at = keep(ring + S::kX + place_of_x(lane % 8, lane / 8) * 16);
  const uint32_t scale_at = keep(affine + g * 4), zero_at = keep(affine + R * 32 + g * 2);
  const uint32_t affine_row = keep(has_scale ? p.n * static_cast<int>(sizeof(T)) : p.n);
  const int half_group = keep(p.k % kGroup ? p.k / kGroup : -1);  // the one of 64 columns
  // 16, which no compiler sees through: it would turn a product by 16 into a shift and a sum.
  const uint32_t sixteen = keep(blockDim.x / (S::kThreads / 16));

  // Tiles of x that this warp copies: wr, wr + WR, ...
  constexpr int kMine = NT / WR > 0 ? NT / WR : 1;
  const int rows_left = keep(rows_of_x - wr * 8 - g);  // from this lane's first one on
  const T* from_x[kMine];
  for (int i = 0; i < kMine; ++i) {
    const int row = m0 + (i * WR * 8 < rows_left ? (i * WR + wr) * 8 + g : 0);
    from_x[i] = static_cast<const T*>(p.x) + static_cast<int64_t>(row) * p.k + t * 8;
  }

  // The next copy: of `group` of the tile before `ahead`, of which this warp has so many `pieces`.
  // The first ones, `near`, are neighbours in memory; the others lie `far` on, in the next 64 rows.
  int ahead = blockIdx.x / CLUSTER, group = 0, pieces = 0, near = 0;
  const int far = (p.k / 64 - 1) * 128;
  uint32_t slot = 0, offsets[R] = {};  // of pieces, in Words
  bool is_affine = false;
  const Words* from_codes = nullptr;
  const char* from_affine = nullptr;
  const auto point = [&] {
    const int piece = first_piece(ahead, wr), row = piece * kTile;
    pieces = first_piece(ahead, wr + 1) - piece;
    near = 4 - piece % 4;
    for (int r = 0; r < R; ++r) offsets[r] = r * 32 + (r < near ? 0 : far);
    from_codes = static_cast<const Words*>(p.packed) +
                 static_cast<int64_t>(piece / 4) * (p.k / 64) * 128 + piece % 4 * 32 + lane + 128;
    from_affine = has_scale ? static_cast<const char*>(p.scale) + (row + lane * 8) * sizeof(T)
                            : static_cast<const char*>(p.zero) + row + (lane - 2 * R) * 16;
    is_affine = (has_scale ? lane / 2 : lane - 2 * R) < pieces;
    group = first_group + wk;
    ahead += gridDim.x / CLUSTER;
  };
  const auto copy = [&] {
    if (S::kLoops && group >= end_group && ahead < tiles) point();
    if (group < end_group) {
      // The last group may be half one: then zeros take the place of its second half in x.
      const bool is_whole = group != half_group;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (r < pieces) {
          const Words* second = offset_by(from_codes, group * 256 + offsets[r], sixteen);
          copy_16(slot + to_codes + r * 512, second - 128);
          copy_16(slot + to_codes + (R + r) * 512, second, is_whole);
        }
      }
      if (is_affine) copy_16(slot + to_affine, offset_by(from_affine, group, affine_row));
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const T* x = offset_by(from_x[i], group * (kGroup * sizeof(T) / 16), sixteen);
        for (int j = 0; j < 4; ++j) {
          const bool is_there = i * WR * 8 < rows_left && (j < 2 || is_whole);
          if (NT >= WR || wr < NT)
            copy_16(slot + to_x + (i * WR * 4 + j) * 512, x + j * 32, is_there);
        }
      }
      group += WK;
    }
    slot += sizeof(Slot);
    if (slot == STAGES * sizeof(Slot)) slot = 0;
    __pipeline_commit();
  };

  const int first_tile = ahead;
  point();
#if __CUDA_ARCH__ >= 900
  // While the kernel before ends: move the first weights into L2. This is right even if that kernel
  // is still writing them: a later write still reaches L2, so nothing stale is read.
  if (group < end_group) {
    const int half = lane % 2, rest = lane < 2 ? min(pieces, near) : pieces - near;
    if (lane < 4 && rest > 0 && (half == 0 || group != half_group)) {
      const Words* codes =
          from_codes - lane + group * 256ll + (half - 1) * 128 + (lane < 2 ? 0 : near * 32 + far);
      prefetch_bulk(codes, rest * 512);
    }
    if (is_affine) prefetch(offset_by(from_affine, group, affine_row));
  }
#endif
  start_next_kernel();
  wait_for_kernel_before();
  if constexpr (CLUSTER > 1) arrive_at_cluster();

  float* all = reinterpret_cast<float*>(memory) + (S::kLoops ? S::kRing / 4 : 0);
#pragma unroll 1
  for (int tile = first_tile, is_first = 1; tile < tiles;
       tile += gridDim.x / CLUSTER, is_first = 0) {
    float sums[R][NT][4] = {};
    const int own_pieces = first_piece(tile, wr + 1) - first_piece(tile, wr);
#pragma unroll 1
    for (bool is_exact = NT > 2;; is_exact = true) {
      // As many turns for all warps: compute-sanitizer's racecheck counts barriers per warp.
      const int turns = WR > 1 ? (count + WK - 1) / WK : my_groups;
#pragma unroll 1
      for (int i = is_first ? 1 - STAGES : 0; i < turns; ++i) {
        if (i >= 0) {
          __pipeline_wait_prior(STAGES - 2);
          if constexpr (WR > 1) {
            // x was copied by the WR warps of this share of K: a barrier of theirs.
            sync_some(wk + 1, 32 * WR);
          } else {
            __syncwarp();  // x and scales were copied by other lanes
          }
        }
        if (i < my_groups) copy();
        if (i < 0 || i >= my_groups) continue;
        // `slot` has gone around: it is the one whose copy was waited for.
        const Places at = {slot + to_codes, slot + x_at, slot + scale_at, slot + zero_at};
        if (NT <= 2 && is_exact)
          group_of_many<T, S, R>(sums, at);
        else
          group_of<T, S>(sums, at, own_pieces);
      }
      bool is_lost = false;
      for (int i = 0; i < R * NT * 4; ++i)
        is_lost |= !isfinite(sums[i / 4 / NT][i / 4 % NT][i % 4]);
      if (!S::kLoops) __pipeline_wait_prior(0);
      // A barrier, too: all have read their slots, and what they finished before.
      if (!__syncthreads_or(is_lost && !is_exact)) break;
      for (int i = 0; i < R * NT * 4; ++i) sums[i / 4 / NT][i / 4 % NT][i % 4] = 0;
      __pipeline_wait_prior(0);
      __syncthreads();
      ahead = tile;
      point();
      slot = 0;
      is_first = 1;
    }

    // Add the sums of the warps along K.
    const int first = first_piece(tile, 0), own = first_piece(tile, wr) - first;
    const int pairs = (first_piece(tile, WR) - first) * (kTile / 2);  // of neighbouring rows
#pragma unroll
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < NT && r < own_pieces; ++i) {
        float* to = all + (wk * S::kBatch + i * 8 + 2 * t) * S::kStride + (own + r) * kTile + 2 * g;
        *reinterpret_cast<float2*>(to) = {sums[r][i][0], sums[r][i][2]};
        *reinterpret_cast<float2*>(to + S::kStride) = {sums[r][i][1], sums[r][i][3]};
      }
    }
    __syncthreads();
    constexpr int kPairs = S::kRows / 2;  // at most
    const auto sum_of_warps = [&](int m, int pair) {
      float2 sum = {0, 0};
      for (int i = 0; i < WK; ++i) {
        const float* part = all + (i * S::kBatch + m) * S::kStride + 2 * pair;
        sum = sum + *reinterpret_cast<const float2*>(part);
      }
      return sum;
    };
    if constexpr (CLUSTER == 1) {
      for (int e = threadIdx.x; e < kPairs * rows_of_x; e += S::kThreads) {
        const int m = e / kPairs, pair = e % kPairs;
        if (pair < pairs) finish<T>(p, m0 + m, first * kTile + 2 * pair, sum_of_warps(m, pair));
      }
    } else {
#if __CUDA_ARCH__ >= 900
      // Each block of a cluster finishes a part of the rows: the others write their sums to it.
      constexpr int kOwned = kPairs / CLUSTER;
      auto* parts = reinterpret_cast<float2*>(memory + S::kOwn / 16);
      const auto cluster = cooperative_groups::this_cluster();
      wait_for_cluster();  // all blocks have started
      for (int e = threadIdx.x; e < kPairs * rows_of_x; e += S::kThreads) {
        const int m = e / kPairs, pair = e % kPairs;
        float2* to = parts + (rank * S::kBatch + m) * kOwned + pair % kOwned;
        *cluster.map_shared_rank(to, pair / kOwned) = sum_of_warps(m, pair);
      }
      cluster.sync();
      for (int e = threadIdx.x; e < kOwned * rows_of_x; e += S::kThreads) {
        const int m = e / kOwned, pair = e % kOwned;
        float2 sum = {0, 0};
        for (int i = 0; i < CLUSTER; ++i) sum = sum + parts[(i * S::kBatch + m) * kOwned + pair];
        if (rank * kOwned + pair < pairs)
          finish<T>(p, m0 + m, first * kTile + 2 * (rank * kOwned + pair), sum);
      }
#endif
    }
    if (!S::kLoops) break;
  }
}

}  // namespace four_bit
