// Attention in a step. Some blocks share the tokens of a key head, in tiles that the producer
// copies into the ring, and the warps of a block share each tile. Then each block takes some
// columns, and joins what all blocks of its key head have sent for them.
#pragma once
#include <float.h>

#include "exchange.cuh"

namespace persistent {

// Which tokens a block attends to.
struct Split {
  int head, split;  // head: key head of a text
  int length;       // tokens in the cache. If it is full, the new token takes the last one's place
  int tiles, step;  // tiles: of all blocks
  bool is_there;    // else the block has no part in attention

  __device__ explicit Split(const Step& p)
      : head(blockIdx.x / p.splits),
        split(blockIdx.x % p.splits),
        length(min(p.counts[min(head / p.key_heads, kTexts - 1)], p.capacity - 1)),
        tiles(length / kTileTokens + 1),  // with the new token
        step(p.splits),
        is_there(head < kTexts * p.key_heads) {}
  __device__ bool has_tile(int tile) const { return tile % step == split; }
};

// q of four heads, rotated and scaled, comes into shared memory. The block that gets the new
// token's tile also rotates its key, and writes key and value into the cache. One warp for each of
// these vectors: four of q, a key, a value.
template <Exchange kExchange>
__device__ inline void receive_q(Consumer& c, const Split& work) {
  const Step& p = c.step;
  const int value = kGroupHeads + 1;
  const bool is_new = c.warp >= kGroupHeads;
  if (c.warp < kGroupHeads || (c.warp <= value && work.has_tile(work.tiles - 1))) {
    const int text = work.head / p.key_heads, key_head = work.head % p.key_heads;
    const int head = is_new ? p.heads + key_head + (c.warp - kGroupHeads) * p.key_heads
                            : key_head * kGroupHeads + c.warp;
    const int64_t angle = int64_t{work.length} * (kHead / 2) + 2 * c.lane;
    const float2 cos = *reinterpret_cast<const float2*>(p.cos + angle);
    const float2 sin = *reinterpret_cast<const float2*>(p.sin + angle);
    const Tagged* const from = p.q + (text * p.qkv_rows() + head * kHead) / 2 + c.lane;
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
      const int64_t heads = int64_t{c.layer} * kTexts * p.key_heads + work.head;
      const int64_t row = heads * p.capacity + work.length;
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
  int fresh;  // the new token, which comes from `shared`; kTileTokens if another tile has it
  int lane;

  // Four columns of a token's key (0) or value (1). Rows after the new token may hold anything,
  // even NaN, and a weight of 0 would not help: 0 * NaN is NaN. So they are read as the new token's
  // row.
  __device__ float4 columns(int token, int which) const {
    const void* row = stage + which * kTileBytes + token * (kHead * 2);
    if (token >= fresh) row = shared.fresh[which];
    return floats(static_cast<const uint2*>(row)[lane]);
  }
};

__device__ inline float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// Each lane has 2 kCount sums. It sends one half of them to the lane whose number differs in the
// bit `apart`, and adds what it gets to the half that it keeps.
template <int kCount>
__device__ inline void halve(float (&x)[8], int lane, int apart) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const bool is_upper = lane & apart;
    const float sent = is_upper ? x[i] : x[i + kCount], kept = is_upper ? x[i + kCount] : x[i];
    x[i] = kept + __shfl_xor_sync(~0u, sent, apart);
  }
}

// A warp's part: two heads, four tokens of each tile, and a softmax of its own. So warps wait for
// no other warp from tile to tile. A lane has four columns, and the score of one token and head:
// head lane / 16, token lane / 4 % 4.
struct Part {
  static constexpr int kHeads = 2, kShares = kWarps * kHeads / kGroupHeads;
  static constexpr int kTokens = kTileTokens / kShares;
  static_assert(kHeads * kTokens == 8);
  static constexpr float kNone = -FLT_MAX;  // before any score. -INFINITY - -INFINITY is NaN
  int head, token;                          // the first ones
  float most = kNone, sum = 0;              // of the lane's head; sum: of the lane's tokens
  float4 out[kHeads] = {};

  __device__ explicit Part(int warp)
      : head(warp / kShares * kHeads), token(warp % kShares * kTokens) {}
  __device__ void add(const Tile& tile, const float4 (&q)[kHeads]) {
    float x[kHeads * kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const float4 key = tile.columns(token + i, 0);
      for (int j = 0; j < kHeads; ++j) x[j * kTokens + i] = dot(key, q[j]);
    }
    halve<4>(x, tile.lane, 16);
    halve<2>(x, tile.lane, 8);
    halve<1>(x, tile.lane, 4);
    for (int i = 1; i < 4; i *= 2) x[0] += __shfl_xor_sync(~0u, x[0], i);
    const float score = token + tile.lane / 4 % kTokens <= tile.fresh ? x[0] : -INFINITY;
    float largest = fmaxf(most, score);
    for (int i = 4; i < 16; i *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, i));
    const float factor = exp_2(most - largest), weight = exp_2(score - largest);
    most = largest;
    sum = sum * factor + weight;
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const float f = __shfl_sync(~0u, factor, 16 * j);
      out[j] = {out[j].x * f, out[j].y * f, out[j].z * f, out[j].w * f};
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const float4 v = tile.columns(token + i, 1);
      for (int j = 0; j < kHeads; ++j) {
        const float w = __shfl_sync(~0u, weight, 16 * j + 4 * i);
        out[j] = {out[j].x + w * v.x, out[j].y + w * v.y, out[j].z + w * v.z, out[j].w + w * v.w};
      }
    }
  }
};

// Joins the parts of the block's warps, a thread for each head and column. Sends numerators, maxima
// and sums.
__device__ inline void join_warps(Consumer& c, const Part& part, Tagged* to) {
  constexpr int kShares = Part::kShares, kColumns = Part::kHeads * kHead;  // of a warp's part
  float* const outs = c.shared.sums[0];                                    // spans both buffers
  static_assert(kWarps * kColumns * sizeof(float) <= sizeof(c.shared.sums));
  float sum = part.sum;
  for (int i = 4; i < 16; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
  if (c.lane % 16 == 0)
    c.shared.softmax[part.head + c.lane / 16][c.warp % kShares] = {part.most, sum};
  for (int j = 0; j < Part::kHeads; ++j)
    reinterpret_cast<float4*>(outs + c.warp * kColumns + j * kHead)[c.lane] = part.out[j];
  c.sync();
  static_assert(kConsumers == kGroupColumns);
  const int head = c.thread / kHead;
  const float* const mine = outs + head / Part::kHeads * kShares * kColumns + c.thread % kColumns;
  float2 softmax[kShares];
  float most = Part::kNone, out = 0;
  for (int i = 0; i < kShares; ++i) {
    softmax[i] = c.shared.softmax[head][i];
    most = fmaxf(most, softmax[i].x);
  }
  sum = 0;
  for (int i = 0; i < kShares; ++i) {
    const float factor = exp_2(softmax[i].x - most);
    sum += factor * softmax[i].y;
    out += factor * mine[i * kColumns];
  }
  send(to + c.thread, __float_as_uint(out), c.tag);
  if (c.thread % kHead == 0) {
    send(to + kGroupColumns + head * 2, __float_as_uint(most), c.tag);
    send(to + kGroupColumns + head * 2 + 1, __float_as_uint(sum), c.tag);
  }
  c.sync();  // `sums` may change now
}

// Attention over the block's tiles.
template <Exchange kExchange>
__device__ inline void attend(Consumer& c, const Split& work) {
  receive_q<kExchange>(c, work);
  Part part(c.warp);
  float4 q[Part::kHeads];
  for (int i = 0; i < Part::kHeads; ++i)
    q[i] = reinterpret_cast<const float4*>(c.shared.q[part.head + i])[c.lane];
  for (int i = work.split; i < work.tiles; i += work.step) {
    const int fresh = i == work.tiles - 1 ? work.length % kTileTokens : kTileTokens;
    part.add({c.stage(), c.shared, fresh, c.lane}, q);
    c.release();
  }
  join_warps(c, part, c.step.parts + (work.head * c.step.splits + work.split) * c.step.part());
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
    const int index = work.head * splits + part;
    const Tagged* const from = c.step.parts + index * c.step.part();
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
  const int first = work.head * kGroupColumns + work.split * columns;
  if (c.thread % 2 == 0) send(c.step.attended + (first + c.thread) / 2, pack(out, next), c.tag);
}

}  // namespace persistent
