// Attention of one query over a cache of keys and values, in five rungs: each removes what limited
// the one before. bfloat16, heads of 128 columns, four query heads for each key head. ladder.py
// checks and times them; docs/17_decode_attention.md tells the story.
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include "common/instructions.cuh"
#include "common/launch.cuh"

namespace {

using bf16 = __nv_bfloat16;
constexpr int kColumns = 128, kGroup = 4;  // query heads that share a key head
constexpr float kScale = 0.08838834764f;   // of a score: 1 / sqrt(kColumns)
constexpr int kWarps = 8, kMaxBlocks = 8;  // warps of a block, blocks of a cluster

// A softmax over some of the tokens, as on the page on reductions: sum is that of the weights
// exp(score - maximum). Also N columns of the sum of weight * value.
template <int N>
struct Part {
  float maximum = -INFINITY, sum = 0, out[N] = {};
};

// What every rung gets. A batch is only more heads.
struct Problem {
  bf16* out;                      // heads x kColumns, as q
  const bf16 *q, *keys, *values;  // keys and values: heads / kGroup x tokens x kColumns
  int heads, tokens;
};

// The key (or value) of a token for a query head.
__host__ __device__ const bf16* row_of(const bf16* x, const Problem& p, int head, int token) {
  return x + (static_cast<int64_t>(head / kGroup) * p.tokens + token) * kColumns;
}

// The reference, on a CPU. It needs no maximum: a double holds exp of any score up to 709.
void attend_on_cpu(const Problem& p) {
  for (int head = 0; head < p.heads; ++head) {
    const bf16* q = p.q + head * kColumns;
    double sum = 0, out[kColumns] = {};
    for (int token = 0; token < p.tokens; ++token) {
      const bf16 *key = row_of(p.keys, p, head, token), *value = row_of(p.values, p, head, token);
      double score = 0;
      for (int i = 0; i < kColumns; ++i) score += __bfloat162float(q[i]) * __bfloat162float(key[i]);
      const double weight = exp(score * kScale);
      sum += weight;
      for (int i = 0; i < kColumns; ++i) out[i] += weight * __bfloat162float(value[i]);
    }
    for (int i = 0; i < kColumns; ++i) p.out[head * kColumns + i] = __double2bfloat16(out[i] / sum);
  }
}

// The + of this reduction.
template <int N>
__device__ Part<N> combine(const Part<N>& a, const Part<N>& b) {
  Part<N> both;
  both.maximum = fmaxf(a.maximum, b.maximum);
  const float shift = both.maximum == -INFINITY ? 0 : both.maximum;  // -inf - -inf would be NaN
  const float x = __expf(a.maximum - shift), y = __expf(b.maximum - shift);
  both.sum = a.sum * x + b.sum * y;
  for (int i = 0; i < N; ++i) both.out[i] = a.out[i] * x + b.out[i] * y;
  return both;
}

// A token is a part, too: its score is the maximum. kColumns / N lanes add the score up.
template <int N>
__device__ Part<N> part_of_token(const bf16* q, const bf16* key, const bf16* value) {
  Part<N> one = {0, 1};
  for (int i = 0; i < N; ++i) one.out[i] = __bfloat162float(value[i]);
  float score = 0;
  for (int i = 0; i < N; ++i) score += __bfloat162float(q[i]) * __bfloat162float(key[i]);
  for (int distance = kColumns / N / 2; distance > 0; distance /= 2)
    score += __shfl_xor_sync(0xffffffff, score, distance);
  one.maximum = score * kScale;
  return one;
}

// A warp takes every step-th token; a lane has four columns.
__device__ Part<4> attend_tokens(const Problem& p, int head, int first, int step) {
  const int column = threadIdx.x % 32 * 4;
  const bf16* q = p.q + head * kColumns + column;
  Part<4> all;
  for (int token = first; token < p.tokens; token += step) {
    const bf16 *key = row_of(p.keys, p, head, token), *value = row_of(p.values, p, head, token);
    all = combine(all, part_of_token<4>(q, key + column, value + column));
  }
  return all;
}

// 1. One warp for each query head takes one token after the other.
__global__ void one_warp_per_head(Problem p) {
  const Part<4> all = attend_tokens(p, blockIdx.x, 0, 1);
  bf16* out = p.out + blockIdx.x * kColumns + threadIdx.x * 4;
  for (int i = 0; i < 4; ++i) out[i] = __float2bfloat16(all.out[i] / all.sum);
}

template <int N>
__device__ void store_columns(Part<kColumns>& to, int column, const Part<N>& part) {
  for (int i = 0; i < N; ++i) to.out[column + i] = part.out[i];
  if (column > 0) return;
  to.maximum = part.maximum;
  to.sum = part.sum;
}

__device__ Part<1> column_of(const Part<kColumns>& part, int column) {
  return {part.maximum, part.sum, {part.out[column]}};
}

// Joins the parts of a block, and then those of the blocks of its cluster, which read each other's
// shared memory; always in the same order. A thread has one column of one head.
template <int kParts, int kHeads>
__device__ void join_parts(const Problem& p, const Part<kColumns> (&parts)[kParts][kHeads]) {
  __shared__ Part<kColumns> joined[kHeads];
  const auto cluster = cooperative_groups::this_cluster();
  const int blocks = gridDim.y, items = kHeads * kColumns;
  __syncthreads();
  for (int i = threadIdx.x; i < items; i += blockDim.x) {
    const int head = i / kColumns, column = i % kColumns;
    Part<1> all;
    for (int j = 0; j < kParts; ++j) all = combine(all, column_of(parts[j][head], column));
    store_columns(joined[head], column, all);
  }
  cluster.sync();
  for (int i = threadIdx.x * blocks + blockIdx.y; i < items; i += blockDim.x * blocks) {
    const Part<kColumns>& mine = joined[i / kColumns];
    Part<1> all;
    for (int block = 0; block < kMaxBlocks && block < blocks; ++block)
      all = combine(all, column_of(*cluster.map_shared_rank(&mine, block), i % kColumns));
    p.out[blockIdx.x * items + i] = __float2bfloat16(all.out[0] / all.sum);
  }
  cluster.sync();  // a block must not end while others read its part
}

// The warps of all blocks of a cluster take turns. This one starts at tile (or token) first_tile()
// and goes on by tile_step().
__device__ int first_tile() { return threadIdx.x / 32 * gridDim.y + blockIdx.y; }
__device__ int tile_step() { return kWarps * gridDim.y; }

// 2. Many warps share the tokens of a head.
__global__ void __launch_bounds__(32 * kWarps) tokens_split(Problem p) {
  __shared__ Part<kColumns> parts[kWarps][1];
  const int warp = threadIdx.x / 32, column = threadIdx.x % 32 * 4;
  const Part<4> part = attend_tokens(p, blockIdx.x, first_tile(), tile_step());
  store_columns(parts[warp][0], column, part);
  join_parts(p, parts);
}

// Eight columns: 16 bytes, which one load brings.
struct alignas(16) Eight {
  bf16 x[8];
};
__device__ Eight load_eight(const bf16* from) { return *reinterpret_cast<const Eight*>(from); }

// 3. Larger loads, and more of them at once: half a warp loads one token, 16 bytes per lane, and a
// warp loads a tile of eight tokens before it uses one.
__global__ void __launch_bounds__(32 * kWarps) wide_loads(Problem p) {
  __shared__ Part<kColumns> parts[2 * kWarps][1];
  const int half = threadIdx.x / 16, column = threadIdx.x % 16 * 8, head = blockIdx.x;
  const Eight q = load_eight(p.q + head * kColumns + column);
  Part<8> all;
  for (int tile = first_tile(); tile * 8 < p.tokens; tile += tile_step()) {
    const int first = tile * 8 + half % 2;
    Eight keys[4], values[4];
    for (int i = 0; i < 4; ++i) {
      const int token = min(first + i * 2, p.tokens - 1);
      keys[i] = load_eight(row_of(p.keys, p, head, token) + column);
      values[i] = load_eight(row_of(p.values, p, head, token) + column);
    }
    for (int i = 0; i < 4; ++i) {
      const Part<8> one = part_of_token<8>(q.x, keys[i].x, values[i].x);
      if (first + i * 2 < p.tokens) all = combine(all, one);
    }
  }
  store_columns(parts[half][0], column, all);
  join_parts(p, parts);
}

// A stage of a pipeline: room in shared memory for a tile, 16 tokens. Piece i of a token, 16 bytes,
// lies in column i ^ token % 8: so piece i of eight tokens is in different banks.
constexpr int kTileTokens = 16, kStages = 3, kPieces = kColumns / 8;
struct Stage {
  uint4 keys[kTileTokens][kPieces], values[kTileTokens][kPieces];
};

__device__ uint32_t address_of(const uint4 (&rows)[kTileTokens][kPieces], int token, int piece) {
  return address(&rows[token][piece ^ token % 8]);
}

// A warp starts to copy a tile, two tokens at a time. Tokens past the end become 0.
__device__ void copy_tile(const Stage& to, const Problem& p, int head, int first) {
  const int piece = threadIdx.x % kPieces;
  for (int i = threadIdx.x / kPieces % 2; i < kTileTokens; i += 2) {
    const bool is_inside = first + i < p.tokens;
    const int token = is_inside ? first + i : 0;
    const bf16 *key = row_of(p.keys, p, head, token), *value = row_of(p.values, p, head, token);
    copy_16_once(address_of(to.keys, i, piece), key + piece * 8, is_inside);
    copy_16_once(address_of(to.values, i, piece), value + piece * 8, is_inside);
  }
}

// What a lane holds. mma.sync multiplies 16 rows, of which the heads fill four, by 8 columns. Of
// the product lane 9 gets row 9 / 4 = 2, columns 9 % 4 * 2 = 2 and 3, in [0] and [1]; and the same
// of row 2 + 8, which is empty, in [2] and [3]. So a lane serves one head. Its part of `out`, as of
// q, is columns 2 and 3 of every eight.
struct Lane {
  uint32_t q[kColumns / 16][4] = {};
  float out[kColumns / 8][4] = {};
  float maximum = -INFINITY, sum = 0;
};

// Rows 4 to 7 repeat the last head; store_lane() leaves them out.
__device__ void load_query(Lane& my, const Problem& p, int first_head) {
  const int lane = threadIdx.x % 32, head = first_head + min(lane / 4, kGroup - 1);
  for (int i = 0; i < kColumns / 8; ++i) {
    const bf16* pair = p.q + head * kColumns + i * 8 + lane % 4 * 2;
    my.q[i / 2][i % 2 * 2] = *reinterpret_cast<const uint32_t*>(pair);
  }
}

// scores += q keys^T, 16 columns at a time, which ldmatrix loads of 16 keys. scores[0] are those of
// tokens 0 to 7 of the tile, scores[1] of 8 to 15.
__device__ void multiply_keys(float (&scores)[2][4], const Lane& my, const Stage& stage) {
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < kColumns / 16; ++i) {
    uint32_t x[4];
    ldmatrix<false>(x, address_of(stage.keys, lane % 16, 2 * i + lane / 16));
    mma<bf16>(scores[0], my.q[i], x[0], x[2]);
    mma<bf16>(scores[1], my.q[i], x[1], x[3]);
  }
}

// Makes weights of the scores. Four lanes share a head. Of the last tile only `tokens` count.
__device__ void weigh(float (&scores)[2][4], Lane& my, int tokens) {
  float maximum = my.maximum;
  for (int i = 0; i < 4; ++i) {
    float& score = scores[i / 2][i % 2];
    score = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2 < tokens ? score * kScale : -INFINITY;
    maximum = fmaxf(maximum, score);
  }
  maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffff, maximum, 1));
  maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffff, maximum, 2));
  const float shift = maximum == -INFINITY ? 0 : maximum;  // as in combine()
  const float factor = __expf(my.maximum - shift);
  my.maximum = maximum;
  my.sum *= factor;
  for (int i = 0; i < kColumns / 4; ++i) my.out[i / 2][i % 2] *= factor;
  for (int i = 0; i < 4; ++i) {
    float& score = scores[i / 2][i % 2];
    score = __expf(score - shift);
    my.sum += score;
  }
}

// out += weights values, 16 columns at a time. mma.sync wants a left factor as it leaves a product,
// so a lane has its weights already.
__device__ void multiply_values(Lane& my, const float (&weights)[2][4], const Stage& stage) {
  const int lane = threadIdx.x % 32;
  uint32_t left[4] = {};  // weights in bfloat16; rows 8 to 15 stay 0
  for (int i = 0; i < 2; ++i)
    left[2 * i] = bits<uint32_t>(__floats2bfloat162_rn(weights[i][0], weights[i][1]));
  for (int i = 0; i < kColumns / 16; ++i) {
    uint32_t x[4];
    ldmatrix<true>(x, address_of(stage.values, lane % 16, 2 * i + lane / 16));
    mma<bf16>(my.out[2 * i], left, x[0], x[1]);
    mma<bf16>(my.out[2 * i + 1], left, x[2], x[3]);
  }
}

__device__ void store_lane(Part<kColumns> (&to)[kGroup], Lane& my) {
  my.sum += __shfl_xor_sync(0xffffffff, my.sum, 1);
  my.sum += __shfl_xor_sync(0xffffffff, my.sum, 2);
  const int head = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  if (head >= kGroup) return;
  for (int i = 0; i < kColumns / 8; ++i)
    store_columns<2>(to[head], i * 8 + column, {my.maximum, my.sum, {my.out[i][0], my.out[i][1]}});
}

__device__ void attend_tile(Lane& my, const Stage& stage, int tokens) {
  float scores[2][4] = {};
  multiply_keys(scores, my, stage);
  weigh(scores, my, tokens);
  multiply_values(my, scores, stage);
}

// 4. A block has all heads that share a key head, and tensor cores multiply: a tile comes from
// memory once for four heads.
__global__ void __launch_bounds__(32 * kWarps) tensor_cores(Problem p) {
  extern __shared__ Stage stages[];  // one for each warp
  __shared__ Part<kColumns> parts[kWarps][kGroup];
  const int warp = threadIdx.x / 32, head = blockIdx.x * kGroup;
  Lane my;
  load_query(my, p, head);
  for (int first = first_tile() * kTileTokens; first < p.tokens;
       first += tile_step() * kTileTokens) {
    copy_tile(stages[warp], p, head, first);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();  // the copies of all lanes are here
    attend_tile(my, stages[warp], p.tokens - first);
    __syncwarp();  // all lanes have read them
  }
  store_lane(parts[warp], my);
  join_parts(p, parts);
}

// 5. Copies ahead: a warp multiplies the tile in one stage of its pipeline, while the copies of the
// next two tiles are under way.
__global__ void __launch_bounds__(32 * kWarps) copies_ahead(Problem p) {
  extern __shared__ Stage stages[];
  __shared__ Part<kColumns> parts[kWarps][kGroup];
  const int warp = threadIdx.x / 32, head = blockIdx.x * kGroup;
  const int first = first_tile() * kTileTokens, step = tile_step() * kTileTokens;
  Stage* pipeline = stages + warp * kStages;
  const auto start_copy = [&](int i) {
    if (first + i * step < p.tokens) copy_tile(pipeline[i % kStages], p, head, first + i * step);
    __pipeline_commit();  // also without a copy: the wait below counts commits
  };
  Lane my;
  load_query(my, p, head);
  for (int i = 0; i < kStages - 1; ++i) start_copy(i);
  for (int i = 0; first + i * step < p.tokens; ++i) {
    __pipeline_wait_prior(kStages - 2);
    __syncwarp();  // tile i is here, and all lanes have read tile i - 1
    start_copy(i + kStages - 1);
    attend_tile(my, pipeline[i % kStages], p.tokens - first - i * step);
  }
  store_lane(parts[warp], my);
  join_parts(p, parts);
}

// Launches a cluster for each of `count` heads, or groups of heads: of as many blocks as all run at
// once, if a multiprocessor has room for `room` of them.
const char* launch_clusters(void (*kernel)(Problem), unsigned count, unsigned room, size_t shared,
                            const Problem& p, cudaStream_t stream) {
  const unsigned at_once = device_attribute(cudaDevAttrMultiProcessorCount) * room;
  unsigned blocks = kMaxBlocks;
  while (blocks > 1 && blocks * count > at_once) blocks /= 2;
  const dim3 grid(count, blocks), cluster(1, blocks);
  return launch(kernel, {grid, 32 * kWarps, shared, cluster}, stream, p);
}

}  // namespace

// Rung 0 is the reference: its pointers are the CPU's. Returns NULL or an error message.
extern "C" const char* launch_ladder(int rung, bf16* out, const bf16* q, const bf16* keys,
                                     const bf16* values, int heads, int tokens,
                                     cudaStream_t stream) {
  if (heads < 1 || heads % kGroup > 0) return "expected a multiple of 4 heads";
  if (tokens < 1) return "expected at least one token";
  const Problem p = {out, q, keys, values, heads, tokens};
  const unsigned groups = heads / kGroup;
  if (rung == 0) {
    attend_on_cpu(p);
    return nullptr;
  }
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 9)
    return "needs compute capability 9.0 (Hopper) or newer, which has clusters";
  if (rung == 1) return launch(one_warp_per_head, {heads, 32}, stream, p);
  if (rung == 2) return launch_clusters(tokens_split, heads, 8, 0, p, stream);
  if (rung == 3) return launch_clusters(wide_loads, heads, 4, 0, p, stream);
  const size_t bytes = kWarps * sizeof(Stage);
  if (rung == 4) return launch_clusters(tensor_cores, groups, 1, bytes, p, stream);
  return launch_clusters(copies_ahead, groups, 1, bytes * kStages, p, stream);
}
