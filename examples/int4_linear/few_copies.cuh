// How few_rows.cuh deals out its work, and copies it: the shape of a block, which pieces of W and
// groups of columns a warp takes, and the copies into the warp's ring.
#pragma once
#include "few_products.cuh"
#include "plan.h"

#include <cuda_pipeline.h>
#include <stddef.h>

namespace four_bit {

// Shape I of kShapes. CLUSTER: blocks that share K. BLOCKS should fit on a multiprocessor.
template <int I, int R_, int STAGES_, int CLUSTER_>
struct Shape {
  static constexpr BlockShape B = kShapes[I];
  static constexpr int R = R_, STAGES = STAGES_, CLUSTER = CLUSTER_, BLOCKS = B.per_processor;
  static constexpr int NT = B.batch / 8, WR = B.rows / kTile / R, WK = B.along_k;
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
  static_assert(kLoops == (B.loops && CLUSTER == 1));
  static constexpr int kOwn = kLoops ? kRing + kSums : kRing > kSums ? kRing : kSums;
  static constexpr int kShared = kOwn + (CLUSTER > 1 ? kRows * kBatch * 4 : 0);  // sums of others
};

// Which groups of columns, rows of x and pieces of W a warp works on, and which part a lane.
template <typename S>
struct Place {
  int lane = threadIdx.x % 32, wr = threadIdx.x / 32 % S::WR, wk = threadIdx.x / 32 / S::WR;
  int g = lane / 4, t = lane % 4;  // as mma.sync numbers its lanes
  int rank = blockIdx.x % S::CLUSTER, m0 = blockIdx.y * S::kBatch, rows_of_x;
  int first_group, end_group;  // of the block, whose warps take them in turn
  int my_groups, turns;        // groups of this warp; turns of its loop
  int share, more;             // pieces of a tile; so many tiles have one more

  __device__ Place(const Int4Call& p, int tiles) {
    rows_of_x = min(p.batch - m0, S::kBatch);
    first_group = groups_of(p) * rank / S::CLUSTER;
    end_group = groups_of(p) * (rank + 1) / S::CLUSTER;
    my_groups = (end_group - first_group + S::WK - 1 - wk) / S::WK;
    // As many turns for all warps: compute-sanitizer's racecheck counts barriers per warp.
    turns = S::WR > 1 ? (end_group - first_group + S::WK - 1) / S::WK : my_groups;
    share = p.n / kTile / tiles;
    more = p.n / kTile % tiles;
  }
  // Where the pieces of the `wr`th warp of a tile begin.
  __device__ int first_piece(int tile, int wr) const {
    return tile * share + min(tile, more) + (share + (tile < more)) * wr / S::WR;
  }
  __device__ int pieces_of(int tile) const {
    return first_piece(tile, wr + 1) - first_piece(tile, wr);
  }
};

// The copies of a warp: group after group, tile after tile, each into the next slot of its ring.
template <typename T, typename S>
struct Copies {
  static constexpr int R = S::R, WR = S::WR, kSlot = sizeof(typename S::Slot);
  static constexpr int kMine = S::NT / WR > 0 ? S::NT / WR : 1;  // tiles of x: wr, wr + WR, ...
  const Int4Call& p;
  const Place<S>& at;
  const int tiles;
  // Addresses in this warp's ring: where it copies to and, as far from `slot`, where it reads.
  uint32_t to_codes, to_affine, to_x, x_at, scale_at, zero_at, slot = 0;
  bool has_scale = at.lane < 2 * R;  // these lanes copy scales, the next R zeros
  uint32_t affine_row, sixteen;
  int half_group, rows_left;
  const T* from_x[kMine];
  // The next copy: of `group` of the tile before `ahead`, of which this warp has so many `pieces`.
  // The first ones are neighbours in memory; the others lie `far` on, in the next 64 rows.
  int ahead = blockIdx.x / S::CLUSTER, group = 0, pieces = 0;
  const int far = (p.k / 64 - 1) * 128;
  uint32_t offsets[R] = {};                 // of pieces, in Words
  bool is_affine = false, is_empty = true;  // is_empty: the ring
  const Words* from_codes = nullptr;
  const char* from_affine = nullptr;

  __device__ Copies(const Int4Call& p, const Place<S>& at, int tiles, const void* memory)
      : p(p), at(at), tiles(tiles) {
    const uint32_t ring = address(memory) + at.wk * S::STAGES * kSlot;
    const uint32_t affine = ring + S::kAffine + at.wr * R * 48;
    to_codes = keep(ring + at.wr * R * 1024 + at.lane * 16);  // where it is read, too
    to_affine = keep(affine + at.lane * 16);
    to_x = keep(ring + S::kX + at.wr * 2048 + place_of_x(at.g, at.t) * 16);
    x_at = keep(ring + S::kX + place_of_x(at.lane % 8, at.lane / 8) * 16);
    scale_at = keep(affine + at.g * 4);
    zero_at = keep(affine + R * 32 + at.g * 2);
    affine_row = keep(has_scale ? p.n * static_cast<int>(sizeof(T)) : p.n);
    half_group = keep(p.k % kGroup ? p.k / kGroup : -1);  // the one of 64 columns
    // 16, which no compiler sees through: it would turn a product by 16 into a shift and a sum.
    sixteen = keep(blockDim.x / (S::kThreads / 16));
    rows_left = keep(at.rows_of_x - at.wr * 8 - at.g);  // from this lane's first one on
    for (int i = 0; i < kMine; ++i) {
      const int row = at.m0 + (i * WR * 8 < rows_left ? (i * WR + at.wr) * 8 + at.g : 0);
      from_x[i] = static_cast<const T*>(p.x) + static_cast<int64_t>(row) * p.k + at.t * 8;
    }
  }

  // Goes on with the tile `ahead`.
  __device__ void point() {
    const int piece = at.first_piece(ahead, at.wr), row = piece * kTile;
    pieces = at.first_piece(ahead, at.wr + 1) - piece;
    const int near = 4 - piece % 4;
    for (int r = 0; r < R; ++r) offsets[r] = r * 32 + (r < near ? 0 : far);
    from_codes = static_cast<const Words*>(p.packed) +
                 static_cast<int64_t>(piece / 4) * (p.k / 64) * 128 + piece % 4 * 32 + at.lane +
                 128;
    from_affine = has_scale ? static_cast<const char*>(p.scale) + (row + at.lane * 8) * sizeof(T)
                            : static_cast<const char*>(p.zero) + row + (at.lane - 2 * R) * 16;
    is_affine = (has_scale ? at.lane / 2 : at.lane - 2 * R) < pieces;
    group = at.first_group + at.wk;
    ahead += gridDim.x / S::CLUSTER;
  }

  // While the kernel before ends: moves the first weights into L2. This is right even if that
  // kernel is still writing them: its writes reach L2, too, so nothing stale is read.
  __device__ void prefetch_first() const {
    if (group >= at.end_group) return;
    for (int r = 0; r < R && r < pieces; ++r) {
      const Words* second = from_codes + group * 256 + offsets[r];
      prefetch(second - 128);
      if (group != half_group) prefetch(second);
    }
    if (is_affine) prefetch(offset_by(from_affine, group, affine_row));
  }

  // The last group may be half one: then zeros take the place of its second half in x.
  __device__ void copy_group() {
    const bool is_whole = group != half_group;
    const uint32_t codes = slot + to_codes, x = slot + to_x;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (r < pieces) {
        const Words* second = offset_by(from_codes, group * 256 + offsets[r], sixteen);
        copy_16(codes + r * 512, second - 128);
        copy_16(codes + (R + r) * 512, second, is_whole);
      }
    }
    if (is_affine) copy_16(slot + to_affine, offset_by(from_affine, group, affine_row));
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const T* from = offset_by(from_x[i], group * (kGroup * sizeof(T) / 16), sixteen);
      const bool has_row = i * WR * 8 < rows_left, has_second = has_row & is_whole;
      for (int j = 0; j < 4; ++j) {
        const bool is_there = j < 2 ? has_row : has_second;
        if (S::NT >= WR || at.wr < S::NT)
          copy_16(x + (i * WR * 4 + j) * 512, from + j * 32, is_there);
      }
    }
  }

  // Starts the next copy, if there is one. Commits in any case: the wait counts commits.
  __device__ void start() {
    if (S::kLoops && group >= at.end_group && ahead < tiles) point();
    if (group < at.end_group) {
      copy_group();
      group += S::WK;
    }
    slot += kSlot;
    if (slot == S::STAGES * kSlot) slot = 0;
    __pipeline_commit();
  }
  // `slot` has gone around: it is the one whose copy was waited for.
  __device__ Places oldest() const {
    return {slot + to_codes, slot + x_at, slot + scale_at, slot + zero_at};
  }
};

}  // namespace four_bit
