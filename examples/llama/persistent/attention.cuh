// Attention in a step. Blocks of a key head share its tokens, in tiles that the producer copies
// into the ring. Then each of them joins all parts of some columns.
#pragma once
#include "exchange.cuh"

namespace persistent {

// Which tokens a block attends to.
struct Split {
  int key_head, split, tiles, step;  // tiles: of all blocks
  bool is_there;                     // else the block has no part in attention

  __device__ Split(const Sizes& p, int length)
      : key_head(blockIdx.x / p.splits),
        split(blockIdx.x % p.splits),
        tiles(length / kTileTokens + 1),  // with the new token
        step(p.splits),
        is_there(key_head < p.key_heads) {}
  __device__ bool has_tile(int tile) const { return tile % step == split; }
};

// q of four heads, rotated and scaled, comes into shared memory. The block that gets the new
// token's tile also rotates its key, and writes key and value into the cache. A warp for each.
template <Exchange kExchange>
__device__ inline void receive_q(Consumer& c, const Split& work) {
  const Step& p = c.step;
  const int value = kGroupHeads + 1;
  const bool is_new = c.warp >= kGroupHeads;
  if (c.warp < kGroupHeads || (c.warp <= value && work.has_tile(work.tiles - 1))) {
    const int head = is_new ? p.heads + work.key_head + (c.warp - kGroupHeads) * p.key_heads
                            : work.key_head * kGroupHeads + c.warp;
    const int64_t angle = int64_t{c.length} * (kHead / 2) + 2 * c.lane;
    const float2 cos = *reinterpret_cast<const float2*>(p.cos + angle);
    const float2 sin = *reinterpret_cast<const float2*>(p.sin + angle);
    const Tagged* const from = p.q + head * (kHead / 2) + c.lane;
    const Tagged found[2] = {load_relaxed(from), load_relaxed(from + 32)};  // both are under way
    uint32_t first = receive<kExchange>(found[0], from, c.tag);
    uint32_t second = receive<kExchange>(found[1], from + 32, c.tag);
    if (c.warp != value) {
      const float2 x = floats(first), y = floats(second);
      first = pack(x.x * cos.x - y.x * sin.x, x.y * cos.y - y.y * sin.y);
      second = pack(y.x * cos.x + x.x * sin.x, y.y * cos.y + x.y * sin.y);
    }
    if (is_new) {
      uint32_t* const fresh = c.shared.fresh[c.warp - kGroupHeads];
      Half* const cache = c.warp == value ? p.values : p.keys;
      const int64_t row = (int64_t{c.layer} * p.key_heads + work.key_head) * p.capacity + c.length;
      uint32_t* const to = reinterpret_cast<uint32_t*>(cache + row * kHead);
      fresh[c.lane] = to[c.lane] = first;
      fresh[c.lane + 32] = to[c.lane + 32] = second;
    } else {
      constexpr float kScale = 1.44269504f * 0.0883883476f;  // log2(e) / sqrt(kHead)
      const float2 x = floats(first), y = floats(second);
      auto* const to = reinterpret_cast<float2*>(c.shared.q[c.warp]) + c.lane;
      to[0] = {x.x * kScale, x.y * kScale};
      to[32] = {y.x * kScale, y.y * kScale};
    }
  }
  c.sync();
}

// A tile of the cache in its stage.
struct Tile {
  const char* stage;
  const Shared& shared;
  int valid;    // tokens
  int new_row;  // the new token's, or -1
  int lane;

  // Four columns of a token's key (0) or value (1).
  __device__ float4 columns(int token, int which) const {
    const void* row = stage + which * kTileBytes + token * (kHead * 2);
    if (token == new_row) row = shared.fresh[which];
    return floats(static_cast<const uint2*>(row)[lane]);
  }
};

__device__ inline float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// Adds a half of 2 kCount sums of each lane to those of the lane that is `apart`: it keeps the
// others.
template <int kCount>
__device__ inline void halve(float (&x)[8], int lane, int apart) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const bool is_upper = lane & apart;
    const float sent = is_upper ? x[i] : x[i + kCount], kept = is_upper ? x[i + kCount] : x[i];
    x[i] = kept + __shfl_xor_sync(~0u, sent, apart);
  }
}

// Scores of two tokens for each warp, and four heads.
__device__ inline void score(float (&scores)[kGroupHeads][kTileTokens], const Tile& tile,
                             const float4 (&q)[kGroupHeads], int warp) {
  static_assert(kTileTokens == 2 * kWarps && kGroupHeads == 4);
  float x[8];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 key = tile.columns(2 * warp + i, 0);
    for (int j = 0; j < kGroupHeads; ++j) x[i * kGroupHeads + j] = dot(key, q[j]);
  }
  halve<4>(x, tile.lane, 16);
  halve<2>(x, tile.lane, 8);
  halve<1>(x, tile.lane, 4);
  for (int i = 1; i < 4; i *= 2) x[0] += __shfl_xor_sync(~0u, x[0], i);
  const int token = 2 * warp + tile.lane / 16;
  if (tile.lane % 4 == 0) scores[tile.lane / 4 % 4][token] = token < tile.valid ? x[0] : -INFINITY;
}

// A warp's part of a head: some tokens of each tile, four columns for each lane.
struct Part {
  static constexpr int kShares = kWarps / kGroupHeads, kTokens = kTileTokens / kShares;
  int head, share;  // all warps of a head know its maximum and its sum
  float most = -INFINITY, sum = 0;
  float4 out = {0, 0, 0, 0};

  __device__ explicit Part(int warp) : head(warp / kShares), share(warp % kShares) {}
  __device__ void add(const Tile& tile, const float (&scores)[kGroupHeads][kTileTokens]) {
    const float score = scores[head][tile.lane];
    float largest = fmaxf(most, score);
    for (int i = 1; i < 32; i *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, i));
    const float factor = exp_2(most - largest), weight = exp_2(score - largest);
    most = largest;
    sum = sum * factor + weight;
    out = {out.x * factor, out.y * factor, out.z * factor, out.w * factor};
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int token = share * kTokens + i;
      const float w = __shfl_sync(~0u, weight, token);
      float4 v = tile.columns(token, 1);
      if (token >= tile.valid) v = {0, 0, 0, 0};  // 0 * NaN would be NaN
      out = {out.x + w * v.x, out.y + w * v.y, out.z + w * v.z, out.w + w * v.w};
    }
  }
};

// Attention over the block's tiles. Sends numerators, maxima and sums.
template <Exchange kExchange>
__device__ inline void attend(Consumer& c, const Split& work) {
  receive_q<kExchange>(c, work);
  float4 q[kGroupHeads];
  for (int i = 0; i < kGroupHeads; ++i)
    q[i] = reinterpret_cast<const float4*>(c.shared.q[i])[c.lane];
  Part part(c.warp);
  int which = 0;  // two buffers of scores, so one barrier is enough
  for (int i = work.split; i < work.tiles; i += work.step, which ^= 1) {
    const int last = c.length % kTileTokens;
    const bool is_last = i == work.tiles - 1;
    const Tile tile = {c.stage(), c.shared, is_last ? last + 1 : kTileTokens, is_last ? last : -1,
                       c.lane};
    score(c.shared.scores[which], tile, q, c.warp);
    c.sync();
    part.add(tile, c.shared.scores[which]);
    c.release();
  }
  for (int i = 1; i < 32; i *= 2) part.sum += __shfl_xor_sync(~0u, part.sum, i);
  Tagged* const to = c.step.parts + (work.key_head * c.step.splits + work.split) * c.step.part();
  if (part.share == 0 && c.lane == 0) {
    send(to + kGroupColumns + part.head * 2, __float_as_uint(part.most), c.tag);
    send(to + kGroupColumns + part.head * 2 + 1, __float_as_uint(part.sum), c.tag);
  }
  float* const all = c.next_sums();
  reinterpret_cast<float4*>(all + c.warp * kHead)[c.lane] = part.out;
  c.sync();
  static_assert(kConsumers == kGroupColumns && kWarps * kHead <= kWarps * kWarpFloats);
  float sum = 0;
  for (int i = 0; i < Part::kShares; ++i)
    sum += all[(c.thread / kHead * Part::kShares + i) * kHead + c.thread % kHead];
  send(to + c.thread, __float_as_uint(sum), c.tag);
}

// Joins all blocks' parts of some columns of a key head, and sends the result.
template <Exchange kExchange>
__device__ inline void join(Consumer& c, const Split& work) {
  const int splits = c.step.splits, columns = kGroupColumns / splits;
  float* const outs = c.next_sums();
  float *const mosts = outs + kGroupColumns, *const sums = mosts + kGroupColumns;
  static_assert(3 * kGroupColumns <= kWarps * kWarpFloats);
  {  // one number for each thread
    const int part = c.thread / columns, column = work.split * columns + c.thread % columns;
    const Tagged* const from = c.step.parts + (work.key_head * splits + part) * c.step.part();
    const Tagged* const softmax = from + kGroupColumns + column / kHead * 2;
    const Tagged found[3] = {load_relaxed(from + column), load_relaxed(softmax),
                             load_relaxed(softmax + 1)};
    outs[c.thread] = __uint_as_float(receive<kExchange>(found[0], from + column, c.tag));
    mosts[c.thread] = __uint_as_float(receive<kExchange>(found[1], softmax, c.tag));
    sums[c.thread] = __uint_as_float(receive<kExchange>(found[2], softmax + 1, c.tag));
  }
  c.sync();
  if (c.thread >= columns) return;  // whole warps
  float most = -INFINITY, sum = 0, out = 0;
  for (int i = 0; i < splits; ++i) most = fmaxf(most, mosts[i * columns + c.thread]);
  for (int i = 0; i < splits; ++i) {
    const float factor = exp_2(mosts[i * columns + c.thread] - most);
    sum += factor * sums[i * columns + c.thread];
    out += factor * outs[i * columns + c.thread];
  }
  out = __fdividef(out, sum);
  const float next = __shfl_down_sync(~0u, out, 1);
  const int first = work.key_head * kGroupColumns + work.split * columns;
  if (c.thread % 2 == 0) send(c.step.attended + (first + c.thread) / 2, pack(out, next), c.tag);
}

}  // namespace persistent
