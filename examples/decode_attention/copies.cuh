// How keys and values come from memory to attend(): its shapes, which tokens a warp takes, and the
// copies into the warp's ring.
#pragma once
#include <cuda_pipeline.h>

#include "parts.cuh"

namespace decode {

template <typename T, bool kInt8, int D_, int kHeads_>  // 4, 8 or 16 heads at most
struct Shape {
  using Query = T;
  using Cached = std::conditional_t<kInt8, int8_t, T>;
  using Factor = std::conditional_t<kInt8, __half, T>;  // what tensor cores multiply
  static constexpr bool is_int8 = kInt8;
  static constexpr int D = D_, kHeads = kHeads_;
  static_assert(kHeads == 4 || kHeads == 8 || kHeads == 16);
  static constexpr int NT = (kHeads + 7) / 8;      // columns / 8
  static constexpr int kOwn = kHeads < 8 ? 1 : 2;  // heads per lane, of its two columns of 8
  static constexpr int kRow = D * sizeof(Cached);  // bytes of a token
  static constexpr int kChunks = kRow / 16, kSteps = D / 16;
  static constexpr int kStepsOfLoad = kInt8 ? 2 : 1;  // of values, that one load_matrices() feeds
  static constexpr int kLoads = kSteps / kStepsOfLoad;
  static constexpr int kTokens = tile_of(kRow), kBlocks = kTokens / 16;
  static constexpr int kSlot = kTokens * (2 * kRow + (kInt8 ? 8 : 0));  // with int8 also scales
  static constexpr int kStages = kRing / kSlot;
  // Position of a token's chunk of 16 bytes in a slot, in chunks. The XOR spreads the same chunk of
  // 8 tokens over all banks.
  __device__ static int place(int token, int chunk) {
    constexpr int kShuffled = kChunks < 8 ? kChunks : 8;
    return token * kChunks + (chunk ^ token / (8 / kShuffled) % kShuffled);
  }
};

// Which heads and tokens a warp has, and which part of its fragments a lane.
struct Place {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int g = lane / 4, t = lane % 4;  // as mma.sync numbers its lanes
  int row, key_head, group, rank;  // group: query heads of a key head; rank: of this block
  int first, step;                 // tiles of tokens: the warp's first one, from one to the next

  __device__ explicit Place(const AttendCall& p) {
    const int splits = p.plan.splits, unit = blockIdx.x / splits;
    rank = blockIdx.x % splits;
    row = unit / p.key_heads;
    key_head = unit % p.key_heads;
    group = p.heads / p.key_heads;
    first = warp * splits + rank;
    step = splits * warps;
  }
  template <typename T>
  __device__ const T* cached(const Rows& x, int64_t token) const {
    return static_cast<const T*>(x.data) + row * x.batch + key_head * x.head + token * x.token;
  }
  template <typename T>
  __device__ const T* query(const AttendCall& p, int head) const {  // past the group: its last head
    return static_cast<const T*>(p.q.data) + row * p.q.batch +
           static_cast<int64_t>(key_head * group + min(head, group - 1)) * p.q.head;
  }
};

// The copies of a warp: tile after tile, each into the next slot of its ring. A slot has keys, then
// values, then the scales of both. A warp copies contiguous bytes: pieces of several rows took 40%
// longer. It reads nothing past the capacity.
template <typename S>
struct Copies {
  using Cached = typename S::Cached;
  static constexpr int kTokens = S::kTokens, kAtOnce = 32 / S::kChunks;
  const AttendCall& p;
  const Place& at;
  uint32_t ring;  // its address in shared memory
  int token = at.lane / S::kChunks, chunk = at.lane % S::kChunks;
  const Cached *key = first_of(p.keys), *value = first_of(p.values);
  const float* key_scale = at.cached<float>(p.key_scale, at.first* kTokens + at.lane);
  const float* value_scale = at.cached<float>(p.value_scale, at.first* kTokens + at.lane);
  int next = at.first;  // the next tile to copy

  __device__ Copies(const AttendCall& p, const Place& at, const char* ring)
      : p(p), at(at), ring(address(ring)) {}
  __device__ const Cached* first_of(const Rows& x) const {
    return at.cached<Cached>(x, at.first * kTokens + token) + chunk * (16 / sizeof(Cached));
  }
  __device__ void copy_rows(uint32_t to, const Cached*& from, int64_t stride, int left) {
    for (int i = 0; i < kTokens; i += kAtOnce)
      copy_16_once(to + S::place(i | token, chunk) * 16, from + i * stride, i + token < left);
    from += int64_t{at.step} * kTokens * stride;
  }
  __device__ void copy_scales(uint32_t to, const float*& from, int64_t stride, int left) {
    copy_4(to + at.lane * 4, from, at.lane < left);
    from += int64_t{at.step} * kTokens * stride;
  }
  // Starts the next copy, unless all of the warp's `tiles` are under way. Commits in any case: the
  // wait counts commits.
  __device__ void start(int stage, int tiles) {
    if (next < tiles) {
      const uint32_t to = ring + stage * S::kSlot, scales = to + 2 * kTokens * S::kRow;
      const int left = p.capacity - next * kTokens;
      copy_rows(to, key, p.keys.token, left);
      copy_rows(to + kTokens * S::kRow, value, p.values.token, left);
      if (S::is_int8 && at.lane < kTokens) {
        copy_scales(scales, key_scale, p.key_scale.token, left);
        copy_scales(scales + kTokens * 4, value_scale, p.value_scale.token, left);
      }
      next += at.step;
    }
    __pipeline_commit();
  }
};

// Prefetches the first data into L2 while the previous kernel finishes. This uses no values, so it
// is safe even while that kernel writes them: its writes go to L2, too.
template <typename S>
__device__ inline void prefetch_first(const AttendCall& p, const Place& at) {
  using Cached = typename S::Cached;
  constexpr int D = S::D, kTokens = S::kTokens;
  const int lane = at.lane;
  prefetch(p.lengths + at.row);
  if (lane < 2 * at.group) prefetch(at.query<typename S::Query>(p, lane / 2) + lane % 2 * (D / 2));
  const int64_t token = at.first * kTokens + lane % kTokens;
  if (token >= p.capacity) return;
  for (const Rows* x : {&p.keys, &p.values})
    prefetch(at.cached<Cached>(*x, token) + lane / kTokens * (D / 2));
  if (S::is_int8 && lane < 2)
    prefetch(at.cached<float>(lane == 0 ? p.key_scale : p.value_scale, at.first * kTokens));
}

}  // namespace decode
