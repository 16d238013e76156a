// The pipeline of a warp: it copies tile after tile of keys and values into the next of its stages
// in shared memory. The warp that produces them also consumes them (tile.cuh).
#pragma once
#include <cuda_pipeline.h>

#include "shape.cuh"

namespace decode {

// A warp copies contiguous bytes: pieces of several rows took 40% longer. It reads nothing past the
// capacity.
template <typename S>
struct Pipeline {
  using Cached = typename S::Cached;
  static constexpr int kTokens = S::kTileTokens;
  static constexpr int kAtOnce = 32 / S::kPieces;  // tokens that 32 lanes copy by one instruction
  const AttendCall& p;
  const Work& work;
  uint32_t stages;  // their address in shared memory
  int token = work.lane / S::kPieces, piece = work.lane % S::kPieces;
  // What this lane copies next: from its piece of a key and of a value, and a scale of each.
  const Cached *key = first_of(p.keys), *value = first_of(p.values);
  const float* key_scale = first_scale_of(p.key_scale);
  const float* value_scale = first_scale_of(p.value_scale);
  int next = work.first_tile;
  int end = p.capacity;  // tokens from here on are not read, and become 0

  __device__ Pipeline(const AttendCall& p, const Work& work, const char* memory)
      : p(p), work(work), stages(address(memory)) {}
  __device__ const Cached* first_of(const Rows& x) const {
    return work.cached<Cached>(x, work.first_tile * kTokens + token) +
           piece * (16 / sizeof(Cached));
  }
  __device__ const float* first_scale_of(const Rows& x) const {
    return work.cached<float>(x, work.first_tile * kTokens + work.lane);
  }
  __device__ uint32_t keys_of(int stage) const { return stages + stage * S::kStageBytes; }

  __device__ void copy_rows(uint32_t to, const Cached*& from, int64_t stride, int left) {
    for (int i = 0; i < kTokens; i += kAtOnce)
      copy_16_once(to + S::swizzled(i | token, piece) * 16, from + i * stride, i + token < left);
    from += int64_t{work.tile_step} * kTokens * stride;
  }
  __device__ void copy_scales(uint32_t to, const float*& from, int64_t stride, int left) {
    copy_4(to + work.lane * sizeof(float), from, work.lane < left);
    from += int64_t{work.tile_step} * kTokens * stride;
  }
  // Starts the copy of the warp's next tile, unless all of its `tiles` are under way. Commits in
  // any case: the wait counts commits.
  __device__ void start_copy(int stage, int tiles) {
    if (next < tiles) {
      const uint32_t keys = keys_of(stage), scales = keys + 2 * S::kTileBytes;
      const int left = end - next * kTokens;
      copy_rows(keys, key, p.keys.token, left);
      copy_rows(keys + S::kTileBytes, value, p.values.token, left);
      if (S::is_int8 && work.lane < kTokens) {
        copy_scales(scales, key_scale, p.key_scale.token, left);
        copy_scales(scales + S::kScaleBytes, value_scale, p.value_scale.token, left);
      }
      next += work.tile_step;
    }
    __pipeline_commit();
  }
};

// Prefetches the first data into L2 while the previous kernel finishes. This uses no values, so it
// is safe even while that kernel writes them: its writes go to L2, too.
template <typename S>
__device__ inline void prefetch_first(const AttendCall& p, const Work& work) {
  using Cached = typename S::Cached;
  constexpr int kHalfRow = S::kColumns / 2, kTokens = S::kTileTokens;
  const int lane = work.lane;
  prefetch(p.lengths + work.row);
  if (lane < 2 * work.group)
    prefetch(work.query<typename S::Query>(p, lane / 2) + lane % 2 * kHalfRow);
  const int64_t token = work.first_tile * kTokens + lane % kTokens;
  if (token >= p.capacity) return;
  for (const Rows* x : {&p.keys, &p.values})
    prefetch(work.cached<Cached>(*x, token) + lane / kTokens * kHalfRow);
  if (S::is_int8 && lane < 2)
    prefetch(
        work.cached<float>(lane == 0 ? p.key_scale : p.value_scale, work.first_tile * kTokens));
}

}  // namespace decode
