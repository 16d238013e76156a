// The sizes that attend() is compiled for, and which part of the work a warp has.
#pragma once
#include "parts.cuh"

namespace decode {

// One attend() for each type of the query (T), width of a head (64 or 128 columns), and number of
// query heads of a key head (up to 4, 8 or 16); and for a cache of T or of int8. One mma.sync takes
// 16 tokens (or 16 columns of the values) and 8 heads.
template <typename T, bool kInt8, int kColumns_, int kHeads_>
struct Shape {
  using Query = T;
  using Cached = std::conditional_t<kInt8, int8_t, T>;
  using Factor = std::conditional_t<kInt8, __half, T>;  // what multiplies the values
  static constexpr bool is_int8 = kInt8;
  static constexpr int kColumns = kColumns_, kHeads = kHeads_;
  static_assert(kColumns == 64 || kColumns == 128);
  static_assert(kHeads == 4 || kHeads == 8 || kHeads == 16);
  static constexpr int kHeadTiles = (kHeads + 7) / 8;       // of 8 heads
  static constexpr int kHeadsPerLane = kHeads < 8 ? 1 : 2;  // of a tile of 8 heads
  static constexpr int kRowBytes = kColumns * sizeof(Cached);
  static constexpr int kTileTokens = tokens_of_tile(kRowBytes);
  static constexpr int kTokenTiles = kTileTokens / 16;  // of 16 tokens: 1 or 2
  static constexpr int kSteps = kColumns / 16;          // of mma.sync, over the columns
  // ldmatrix loads 32 bytes of each of 16 tokens: columns for one step, or with int8 for two.
  static constexpr int kStepsPerLoad = 2 / sizeof(Cached);
  static constexpr int kLoads = kSteps / kStepsPerLoad;
  // A stage has the keys of a tile, then its values; with int8 then the scales of both.
  static constexpr int kTileBytes = kTileTokens * kRowBytes;
  static constexpr int kScaleBytes = kInt8 ? kTileTokens * sizeof(float) : 0;
  static constexpr int kStageBytes = 2 * (kTileBytes + kScaleBytes);
  static constexpr int kStages = kPipelineBytes / kStageBytes;

  // Where piece i of a token lies in a stage, counted in pieces of 16 bytes. The XOR spreads the
  // same piece of 8 tokens over all banks.
  static constexpr int kPieces = kRowBytes / 16;
  __device__ static int swizzled(int token, int piece) {
    constexpr int kShuffled = kPieces < 8 ? kPieces : 8;
    return token * kPieces + (piece ^ token / (8 / kShuffled) % kShuffled);
  }
};

// A unit of work is one key head of one row of the batch. `splits` blocks share it, and their warps
// take its tiles in turn.
struct Work {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  // Of each 8 x 8 elements that mma.sync takes or leaves, the lane holds two neighbours: row
  // lane_row, columns 2 lane_pair and 2 lane_pair + 1.
  int lane_row = lane / 4, lane_pair = lane % 4;
  int row, key_head;          // of the batch; of the row
  int group;                  // query heads of the key head
  int rank;                   // of this block, among those of its unit
  int first_tile, tile_step;  // tiles of this warp: the first one, and from one to the next

  __device__ explicit Work(const AttendCall& p) {
    const int splits = p.plan.splits, unit = blockIdx.x / splits;
    rank = blockIdx.x % splits;
    row = unit / p.key_heads;
    key_head = unit % p.key_heads;
    group = p.heads / p.key_heads;
    first_tile = warp * splits + rank;
    tile_step = splits * warps;
  }
  __device__ bool has_tile(int tile) const {
    return tile >= first_tile && (tile - first_tile) % tile_step == 0;
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

}  // namespace decode
