// Attention of one query over a cache of keys and values. docs/17_decode_attention.md explains it.
//
// The query heads that share a key head are the columns of two products by mma.sync: S^T = K Q^T,
// whose rows are 16 cached tokens, and O^T = V^T P, whose rows are 16 columns of the values. A warp
// takes every n-th tile of tokens; cp.async copies them into a pipeline of its own. The parts of
// warps, and of blocks (by a cluster or by a second kernel), are joined in a fixed order, so two
// runs give the same bits.
#pragma once
#include "epilogue.cuh"
#include "fresh.cuh"
#include "pipeline.cuh"

namespace decode {

// AnyCall: AttendCall; or StepCall, whose new token is appended here (fresh.cuh).
template <typename S, typename AnyCall>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) attend(const __grid_constant__ AnyCall p) {
  constexpr bool kAppends = std::is_same_v<AnyCall, StepCall>;
  extern __shared__ __align__(256) char memory[];
  __shared__ Parts<S> parts;
  const Work work(p);
  char* const stages = memory + work.warp * kPipelineBytes;
  Pipeline<S> pipeline(p, work, stages);
  launch_dependent_grids();
  prefetch_first<S>(p, work);
  wait_on_dependent_grids();
  if (p.plan.is_cluster) cluster_arrive();
  const int given = p.lengths[work.row];
  Lane<S> my;
  load_query(my, p, work);  // before the copies, which fill all queues
  keep_order();
  const int length = min(max(given + kAppends, 0), p.capacity);
  const int tiles = divide_up(length, S::kTileTokens);
  [[maybe_unused]] bool has_angle = false;
  [[maybe_unused]] Angles<S> angles;
  if constexpr (kAppends) {
    has_angle = given >= 0 && given < p.positions;
    angles.load(p, has_angle ? given : 0, work.lane_pair);
    pipeline.end = min(max(given, 0), p.capacity);  // the new token's place is being written
  }
#pragma unroll 1
  for (int stage = 0; stage < S::kStages; ++stage) pipeline.start_copy(stage, tiles);
  [[maybe_unused]] NewToken<S> fresh;
  if constexpr (kAppends) {
    angles.rotate(my, has_angle);
    if (given >= 0 && given < p.capacity && work.has_tile(given / S::kTileTokens))
      fresh.load(p, work, given);
  }
  prepare_query(my, p.scale, work.first_tile < tiles ? kLowest : -INFINITY, work.lane_pair);

  // The main loop: the warp waits for its next tile, consumes it, and starts the copy that fills
  // its stage again.
  int stage = 0;
  for (int i = work.first_tile; i < tiles; i += work.tile_step) {
    __pipeline_wait_prior(S::kStages - 1);
    __syncwarp();  // the other lanes' copies
    char* const here = stages + stage * S::kStageBytes;
    if constexpr (kAppends) {
      if (i == fresh.tile) fresh.put(here);
    }
    const uint32_t keys = pipeline.keys_of(stage), values = keys + S::kTileBytes;
    Fragments<S> tile;
    tile.left = length - i * S::kTileTokens;
    load_rows<false>(tile, keys, work.lane);
    multiply_keys(tile, my);
    tile.scales.load(here, work.lane_row, tile.left);
    clear_values<S>(here, tile.left, work.lane);
    load_rows<true>(tile, values, work.lane);
    convert_values(tile, 0);  // while the scores are computed
    __syncwarp();             // all lanes have read the stage: it is empty
    pipeline.start_copy(stage, tiles);
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    if (scale_scores(tile, my, work.lane_row)) raise_maximum(my, tile);
    multiply_values(my, tile);
  }

  __pipeline_wait_prior(0);  // a safeguard: the loop has waited for all copies and reads
  __syncwarp();
  store_part(parts, memory, my, work);
  __syncthreads();
  if (p.plan.is_cluster) cluster_wait();
  join_warps(parts, memory, p, work);
#if __CUDA_ARCH__ >= 900
  if (!p.plan.is_cluster) return;
  cooperative_groups::this_cluster().sync();
  join_blocks(parts, p, work);
#endif
}

}  // namespace decode
