// A decoding step in one kernel: what it gets, how the weights lie in memory, what a block has in
// shared memory. docs/18_llama.md explains it.
#pragma once
#include <stdint.h>

#include "common/divide.h"
#include "instructions.cuh"

namespace persistent {

constexpr int kTexts = TEXTS;  // of a step
static_assert(kTexts == 1 || kTexts == 2);
constexpr int kWarps = 16, kConsumers = 32 * kWarps;  // and one more warp, the producer
constexpr int kThreads = kConsumers + 32;

// A unit: 16 rows and 128 columns of a weight. Codes: a byte has those of columns c (its lower
// half) and c + 64. Then scales (bfloat16), and zeros (bytes).
constexpr int kRows = 16, kColumns = 128;
constexpr int kScales = kRows * kColumns / 2, kZeros = kScales + kRows * 2, kUnit = kZeros + kRows;
// A stage: a unit for each consumer warp, of the same rows. Or some tokens' keys and values.
constexpr int kStage = kWarps * kUnit, kStageColumns = kWarps * kColumns;
constexpr int kStages = kTexts == 1 ? 12 : 11;  // the sums of two texts need more room
constexpr int kInFlight = 2;  // stages under way: other loads seem to wait behind them

constexpr int kChunk = 7;  // strips of 16 rows whose sums are joined together
// A warp's sums. 20: with 16, more reads would meet in a bank.
constexpr int kTextFloats = kChunk * 20;
constexpr int kWarpFloats = kTexts * kTextFloats;
constexpr int kScratchWords = kColumns;  // for two groups of columns, where the sums will be
static_assert(kScratchWords <= kWarpFloats && kChunk * 64 <= kConsumers);

constexpr int kHead = 128, kGroupHeads = 4, kTileTokens = 32;
constexpr int kGroupColumns = kGroupHeads * kHead;  // heads of a key head, next to each other
constexpr int kTileBytes = kTileTokens * kHead * 2;
static_assert(2 * kTileBytes <= kStage);

constexpr int kMostResidual = 64;  // rows of the residual stream that a block owns

using Half = __nv_bfloat16;

// Two numbers of bfloat16, or one of float, with a tag: for which layer of which step.
using Tagged = uint64_t;

struct Sizes {
  int layers, hidden, inner, heads, key_heads, vocabulary, capacity;
  int splits;  // blocks of a key head
  float eps;

  __host__ __device__ int qkv_rows() const { return (heads + 2 * key_heads) * kHead; }
  __host__ __device__ int part() const { return kGroupColumns + 2 * kGroupHeads; }
};

struct Step : Sizes {
  const char *qkv, *o, *gate_up, *down, *last;  // units [layer, rows / 16, columns / 128]
  const Half *embedding, *norms;                // [vocabulary, hidden], [2 layers + 1, hidden]
  Half *keys, *values;                          // [layer, text, key head, capacity, kHead]
  const float *cos, *sin;                       // [positions, kHead / 2]
  int64_t* token;                               // [text], the newest one; then the next one
  int32_t* counts;                              // [2, text], tokens in the cache, and that + 1
  uint32_t* number;                             // of this step, from 1 on
  __nv_bfloat162* logits;                       // [text, vocabulary]
  unsigned* arrived;                            // blocks, at all barriers so far
  // What blocks send each other, for each text: the residual stream after o and after down; q, k,
  // v; parts of attention, and its result; silu(gate) * up; the best token of each block.
  Tagged *x, *x_2, *q, *parts, *attended, *inner_x, *best;
};

// A strip is 16 rows of a weight. How many of them this block has: as many as all others, or one
// less. first_row(i): of its strip i.
__device__ inline int strips_of(int rows) {
  return divide_up(rows / kRows - static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}
__device__ inline int first_row(int i) { return (blockIdx.x + i * gridDim.x) * kRows; }

struct Shared {
  char ring[kStages][kStage];
  float sums[2][kWarps * kWarpFloats];
  float q[kGroupHeads][kHead];
  float2 softmax[kGroupHeads][kWarps / 2];  // maximum and sum of each warp's part of attention
  uint32_t fresh[2][kHead / 2];             // the new token's key and value
  float residual[kTexts][kMostResidual];
  float squares[kTexts][kWarps];
  float2 best[kTexts][kConsumers / 8];  // logit, and token (as bits), of each pair of rows
  uint64_t full[kStages], empty[kStages];
};

// Which stage of the ring comes next, for the producer or for a consumer.
struct Place {
  int stage = 0, parity;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ inline float2 floats(uint32_t x) {
  return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000)};
}
__device__ inline uint32_t pack(float x, float y) {
  return bits<uint32_t>(__floats2bfloat162_rn(x, y));
}
// Four numbers of bfloat16.
__device__ inline float4 floats(uint2 x) {
  const float2 low = floats(x.x), high = floats(x.y);
  return {low.x, low.y, high.x, high.y};
}

}  // namespace persistent
