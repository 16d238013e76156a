// What attend() does if it also appends: it rotates q in its registers, and the warp that gets the
// tile of the new token rotates k, writes k and v into the cache, and puts them into its stage.
// So no kernel has to run before it, and nothing waits for the cache.
#pragma once
#include "append.cuh"
#include "tile.cuh"

namespace decode {

// Angles of the columns that a lane holds of q: register r of the first half of the row has two of
// them, and register r + kPairs their partners.
template <typename S>
struct Angles {
  static constexpr int kPairs = S::kColumns / 16;
  float2 cos[kPairs], sin[kPairs];

  __device__ void load(const StepCall& p, int64_t position, int lane_pair) {
    for (int r = 0; r < kPairs; ++r) {
      const int column =
          S::is_int8 ? r / 2 * 16 + lane_pair * 4 + r % 2 * 2 : r * 8 + lane_pair * 2;
      const int64_t at = position * (S::kColumns / 2) + column;
      cos[r] = *reinterpret_cast<const float2*>(p.cos + at);
      sin[r] = *reinterpret_cast<const float2*>(p.sin + at);
    }
  }
  // Without an angle, as for a token past the table, q becomes 0.
  __device__ void rotate(Lane<S>& my, bool has_angle) const {
    using T = typename S::Query;
    for (auto& q : my.q) {
      for (int r = 0; r < kPairs; ++r) {
        const float2 low = unpack<T>(q[r]), high = unpack<T>(q[r + kPairs]);
        q[r] = pack<T>(low.x * cos[r].x - high.x * sin[r].x, low.y * cos[r].y - high.y * sin[r].y);
        q[r + kPairs] =
            pack<T>(high.x * cos[r].x + low.x * sin[r].x, high.y * cos[r].y + low.y * sin[r].y);
        if (!has_angle) q[r] = q[r + kPairs] = 0;
      }
    }
  }
};

// The new token's key and value. kLanes lanes have eight columns of each half of the key, and
// kLanes others those of the value; any further lanes repeat their work and store nothing.
template <typename S>
struct NewToken {
  using Cached = typename S::Cached;
  static constexpr int kLanes = S::kColumns / 16, kHalf = S::kColumns / 2;
  float low[8], high[8], scale = 0;
  int tile = -1;  // the token's, if this warp gets it
  int token, lane;
  bool is_key, is_stored;

  // The caller's warp is the one that gets the token's tile.
  __device__ void load(const StepCall& p, const Work& work, int position) {
    tile = position / S::kTileTokens;
    token = position % S::kTileTokens;
    lane = work.lane % kLanes;
    is_key = work.lane / kLanes % 2 == 0;
    is_stored = work.lane < 2 * kLanes;
    using T = typename S::Query;
    const Rows& of = is_key ? p.k : p.v;
    const T* from = static_cast<const T*>(of.data) + work.row * of.batch + work.key_head * of.head;
    read_8(low, from + lane * 8);
    read_8(high, from + lane * 8 + kHalf);
    if (is_key) {
      const int64_t angle = int64_t{position} * kHalf + lane * 8;
      for (int i = 0; i < 8; ++i) {
        const float cos = p.cos[angle + i], sin = p.sin[angle + i], x = low[i], y = high[i];
        low[i] = x * cos - y * sin;
        high[i] = y * cos + x * sin;
      }
    }
    if constexpr (S::is_int8) scale = quantize<kLanes>(low, high);
    if (is_stored) store(p, work, position);
  }
  __device__ void store(const StepCall& p, const Work& work, int position) const {
    Cached* to = const_cast<Cached*>(work.cached<Cached>(is_key ? p.keys : p.values, position));
    write_8(to + lane * 8, low);
    write_8(to + lane * 8 + kHalf, high);
    if (S::is_int8 && lane == 0)
      *const_cast<float*>(work.cached<float>(is_key ? p.key_scale : p.value_scale, position)) =
          scale;
  }
  // Into the stage of the token's tile, where the copy has left 0.
  __device__ void put(char* stage) const {
    if (is_stored) {
      constexpr int kBytes = 8 * sizeof(Cached), kInPiece = 16 / kBytes;  // eight columns: 1 or 1/2
      const int piece = lane / kInPiece;
      char* const rows = stage + (is_key ? 0 : S::kTileBytes) + lane % kInPiece * kBytes;
      write_8(reinterpret_cast<Cached*>(rows + S::swizzled(token, piece) * 16), low);
      write_8(reinterpret_cast<Cached*>(rows + S::swizzled(token, piece + S::kPieces / 2) * 16),
              high);
      if (S::is_int8 && lane == 0) {
        float* scales = reinterpret_cast<float*>(stage + 2 * S::kTileBytes);
        scales[(is_key ? 0 : S::kTileTokens) + token] = scale;
      }
    }
    __syncwarp();
  }
};

}  // namespace decode
