// The shape of a block of few_rows.cuh, which strips of W and groups of columns a warp takes, and
// the pipeline of each warp: stages that it fills by cp.async.
#pragma once
#include "few_products.cuh"
#include "plan.h"

#include <cuda_pipeline.h>
#include <stddef.h>

namespace four_bit {

// Shape I of kShapes: up to kStrips_ strips per warp, kStages_ stages, kCluster_ blocks that share
// K. kPerProcessor blocks should fit on a multiprocessor. kNorm_: the share of a norm's work that
// the kernel does (norm.cuh).
enum class Norm { kNone, kBefore, kAfter };  // where the product is: before a norm, or after it
template <int I, int kStrips_, int kStages_, int kCluster_, Norm kNorm_ = Norm::kNone>
struct FewRowsShape {
  static constexpr BlockShape kBlock = kShapes[I];
  static constexpr int kStrips = kStrips_, kStages = kStages_, kCluster = kCluster_;
  static constexpr Norm kNorm = kNorm_;
  static constexpr int kPerProcessor = kBlock.per_processor, kTilesOfX = kBlock.batch / 8;
  static constexpr int kWarpsAlongW = kBlock.rows / kTile / kStrips;
  static constexpr int kWarpsAlongK = kBlock.along_k;
  static constexpr int kRows = kWarpsAlongW * kStrips * kTile, kBatch = kTilesOfX * 8;
  static constexpr int kThreads = 32 * kWarpsAlongW * kWarpsAlongK;
  static constexpr int kStride = kRows + 4;  // floats from one row of x to the next: banks differ
  // With more rows of x, codes become (code - zero) * scale before they are multiplied.
  static constexpr bool kIsConvertedFirst = kTilesOfX > 2;
  struct Stage {
    Words codes[kWarpsAlongW][2][kStrips][32];  // a lane reads what it has copied itself
    Words x[kTilesOfX][4][32];
    uint4 affine[kWarpsAlongW][3 * kStrips];  // scales, then zeros
  };
  static constexpr uint32_t kX = offsetof(Stage, x), kAffine = offsetof(Stage, affine);
  static constexpr int kPipelineBytes = kWarpsAlongK * kStages * static_cast<int>(sizeof(Stage));
  static constexpr int kSumBytes = kWarpsAlongK * kBatch * kStride * 4;
  // Where there is room for both, a block computes several tiles, and copies ahead from tile to
  // tile.
  static constexpr bool kIsPersistent =
      kPerProcessor == 1 && kCluster == 1 && kPipelineBytes + kSumBytes <= 227 * 1024;
  static_assert(kIsPersistent == (kBlock.is_persistent && kCluster == 1));
  static constexpr int kOwnBytes = kIsPersistent                ? kPipelineBytes + kSumBytes
                                   : kPipelineBytes > kSumBytes ? kPipelineBytes
                                                                : kSumBytes;
  // With the sums of the cluster's other blocks.
  static constexpr int kShared = kOwnBytes + (kCluster > 1 ? kRows * kBatch * 4 : 0);
};

// Which groups of columns, rows of x and strips of W a warp works on, and which part a lane.
template <typename S>
struct WarpWork {
  int lane = threadIdx.x % 32;
  int warp_w = threadIdx.x / 32 % S::kWarpsAlongW, warp_k = threadIdx.x / 32 / S::kWarpsAlongW;
  int g = lane / 4, t = lane % 4;  // as mma.sync numbers its lanes
  int rank = blockIdx.x % S::kCluster, first_m = blockIdx.y * S::kBatch, rows_of_x;
  int first_group, end_group;         // of the block, whose warps take them in turn
  int my_groups, steps;               // groups of this warp; steps of its main loop
  int strips_per_tile, longer_tiles;  // so many tiles have one strip more

  __device__ WarpWork(const Int4Call& p, int tiles) {
    rows_of_x = min(p.batch - first_m, S::kBatch);
    first_group = groups_of(p) * rank / S::kCluster;
    end_group = groups_of(p) * (rank + 1) / S::kCluster;
    my_groups = (end_group - first_group + S::kWarpsAlongK - 1 - warp_k) / S::kWarpsAlongK;
    // As many steps for all warps: compute-sanitizer's racecheck counts barriers per warp.
    steps = S::kWarpsAlongW > 1 ? (end_group - first_group + S::kWarpsAlongK - 1) / S::kWarpsAlongK
                                : my_groups;
    strips_per_tile = p.n / kTile / tiles;
    longer_tiles = p.n / kTile % tiles;
  }
  // Where the strips of a warp of a tile begin.
  __device__ int first_strip(int tile, int warp_w) const {
    return tile * strips_per_tile + min(tile, longer_tiles) +
           (strips_per_tile + (tile < longer_tiles)) * warp_w / S::kWarpsAlongW;
  }
  __device__ int strips_of(int tile) const {
    return first_strip(tile, warp_w + 1) - first_strip(tile, warp_w);
  }
};

// The pipeline of a warp: copies, group after group and tile after tile, each into the next stage.
template <typename T, typename S>
struct WarpPipeline {
  static constexpr int kStrips = S::kStrips, kWarpsAlongW = S::kWarpsAlongW;
  static constexpr int kStageBytes = sizeof(typename S::Stage);
  static constexpr int kChunk = 4 * 32;  // 64 rows and 64 columns of codes, in Words
  // Of x a warp copies tiles warp_w, warp_w + kWarpsAlongW, ...: so many.
  static constexpr int kMyTiles = S::kTilesOfX / kWarpsAlongW > 0 ? S::kTilesOfX / kWarpsAlongW : 1;
  const Int4Call& p;
  const WarpWork<S>& work;
  const int tiles;
  // Addresses in this warp's first stage: where it copies to, and where it reads. `stage`: how far
  // the stage that is filled next lies behind the first one.
  uint32_t to_codes, to_affine, to_x, x_at, scale_at, zero_at, stage = 0;
  bool has_scale = work.lane < 2 * kStrips;  // these lanes copy scales, the next kStrips zeros
  uint32_t affine_row, sixteen;
  int half_group, rows_left;
  const T* from_x[kMyTiles];
  // The next copy: of `group` of the tile before `next_tile`, of which this warp has so many
  // `strips`. The first ones are neighbours in memory; the others lie `far` on, in the next 64
  // rows.
  int next_tile = blockIdx.x / S::kCluster, group = 0, strips = 0;
  const int far = (p.k / 64 - 1) * kChunk;
  uint32_t offsets[kStrips] = {};           // of strips, in Words
  bool is_affine = false, is_empty = true;  // is_empty: the pipeline
  const Words* second_half = nullptr;       // of the codes of the tile's first group
  const char* from_affine = nullptr;

  __device__ WarpPipeline(const Int4Call& p, const WarpWork<S>& work, int tiles, const void* memory)
      : p(p), work(work), tiles(tiles) {
    const uint32_t first = address(memory) + work.warp_k * S::kStages * kStageBytes;
    const uint32_t affine = first + S::kAffine + work.warp_w * kStrips * (kScaleBytes + kZeroBytes);
    to_codes = keep(first + work.warp_w * kStrips * 2 * kWarpBytes + work.lane * 16);
    to_affine = keep(affine + work.lane * 16);
    to_x = keep(first + S::kX + work.warp_w * 4 * kWarpBytes + place_of_x(work.g, work.t) * 16);
    x_at = keep(first + S::kX + place_of_x(work.lane % 8, work.lane / 8) * 16);
    scale_at = keep(affine + work.g * 4);
    zero_at = keep(affine + kStrips * kScaleBytes + work.g * 2);
    affine_row = keep(has_scale ? p.n * static_cast<int>(sizeof(T)) : p.n);
    half_group = keep(p.k % kGroup ? p.k / kGroup : -1);  // the one of 64 columns
    // 16, which no compiler sees through: it would turn a product by 16 into a shift and a sum.
    sixteen = keep(blockDim.x / (S::kThreads / 16));
    rows_left = keep(work.rows_of_x - work.warp_w * 8 - work.g);  // from this lane's first one on
    for (int i = 0; i < kMyTiles; ++i) {
      const bool has_row = i * kWarpsAlongW * 8 < rows_left;
      const int row = work.first_m + (has_row ? (i * kWarpsAlongW + work.warp_w) * 8 + work.g : 0);
      from_x[i] = static_cast<const T*>(p.x) + static_cast<int64_t>(row) * p.k + work.t * 8;
    }
  }

  // Goes on with the copies of `next_tile`.
  __device__ void begin_tile() {
    const int strip = work.first_strip(next_tile, work.warp_w), row = strip * kTile;
    strips = work.first_strip(next_tile, work.warp_w + 1) - strip;
    const int near = 4 - strip % 4;
    for (int r = 0; r < kStrips; ++r) offsets[r] = r * 32 + (r < near ? 0 : far);
    second_half = static_cast<const Words*>(p.packed) +
                  static_cast<int64_t>(strip / 4) * (p.k / 64) * kChunk + strip % 4 * 32 +
                  work.lane + kChunk;
    from_affine = has_scale
                      ? static_cast<const char*>(p.scale) + (row + work.lane * 8) * sizeof(T)
                      : static_cast<const char*>(p.zero) + row + (work.lane - 2 * kStrips) * 16;
    is_affine = (has_scale ? work.lane / 2 : work.lane - 2 * kStrips) < strips;
    group = work.first_group + work.warp_k;
    next_tile += gridDim.x / S::kCluster;
  }

  // While the kernel before ends: moves the first weights into L2. This is right even if that
  // kernel is still writing them: its writes reach L2, too, so nothing stale is read.
  __device__ void prefetch_first() const {
    if (group >= work.end_group) return;
    for (int r = 0; r < kStrips && r < strips; ++r) {
      const Words* second = second_half + group * 2 * kChunk + offsets[r];
      prefetch(second - kChunk);
      if (group != half_group) prefetch(second);
    }
    if (is_affine) prefetch(offset_by(from_affine, group, affine_row));
  }

  // The last group may be half one: then zeros take the place of its second half in x.
  __device__ void copy_group() {
    const bool is_whole = group != half_group;
    const uint32_t codes = stage + to_codes, x = stage + to_x;
#pragma unroll
    for (int r = 0; r < kStrips; ++r) {
      if (r < strips) {
        const Words* second = offset_by(second_half, group * 2 * kChunk + offsets[r], sixteen);
        copy_16(codes + r * kWarpBytes, second - kChunk);
        copy_16(codes + (kStrips + r) * kWarpBytes, second, is_whole);
      }
    }
    if (is_affine) copy_16(stage + to_affine, offset_by(from_affine, group, affine_row));
#pragma unroll
    for (int i = 0; i < kMyTiles; ++i) {
      const T* from = offset_by(from_x[i], group * (kGroup * sizeof(T) / 16), sixteen);
      const bool has_row = i * kWarpsAlongW * 8 < rows_left, has_second = has_row & is_whole;
      for (int j = 0; j < 4; ++j) {
        const bool is_there = j < 2 ? has_row : has_second;
        if (S::kTilesOfX >= kWarpsAlongW || work.warp_w < S::kTilesOfX)
          copy_16(x + (i * kWarpsAlongW * 4 + j) * kWarpBytes, from + j * 32, is_there);
      }
    }
  }

  // Starts the next copy, if there is one. Commits in any case: the wait counts commits.
  __device__ void start_copy() {
    if (S::kIsPersistent && group >= work.end_group && next_tile < tiles) begin_tile();
    if (group < work.end_group) {
      copy_group();
      group += S::kWarpsAlongK;
    }
    stage += kStageBytes;
    if (stage == S::kStages * kStageBytes) stage = 0;
    __pipeline_commit();
  }
  // The stage that is filled next is the oldest one: its copy was waited for.
  __device__ StageAddresses oldest_stage() const {
    return {stage + to_codes, stage + x_at, stage + scale_at, stage + zero_at};
  }
};

}  // namespace four_bit
