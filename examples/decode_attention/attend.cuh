// Attention of one query over a cache of keys and values. docs/13_decode_attention.md explains it.
//
// The query heads that share a key head are the columns of a matrix product, 16 cached tokens its
// rows: S^T = K Q^T, then O^T = V^T P, both by mma.sync. A warp takes every n-th tile of tokens;
// cp.async copies them into a ring of its own. The parts of warps, and of blocks (by a cluster or
// by a second kernel), are joined in a fixed order, so two runs give the same bits.
#pragma once
#include <cooperative_groups.h>
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

// Converts two bytes, x + 128 each, to halves exactly: 0x6400 + n is the half 1024 + n.
__device__ inline uint32_t two_halves(uint32_t word, uint32_t which) {
  const uint32_t both = __byte_perm(word, 0x64646464, which);
  return bits<uint32_t>(__hsub2(bits<__half2>(both), bits<__half2>(0x64806480)));
}
// Makes a factor of values for mma.sync. 16 bytes hold 8 elements, or 16 of int8: there the even
// ones replace the first 8 and the odd ones the last 8.
template <typename S>
__device__ inline void factor_of(uint32_t (&x)[4], const uint32_t (&loaded)[4], int step) {
  for (int i = 0; i < 2; ++i) {
    const uint32_t word = loaded[S::is_int8 ? step % 2 * 2 + i : i];
    x[2 * i] = S::is_int8 ? two_halves(word ^ 0x80808080, 0x4240) : word;
    x[2 * i + 1] = S::is_int8 ? two_halves(word ^ 0x80808080, 0x4341) : loaded[i + 2];
  }
}
// Makes factors of q for tensor cores that multiply bytes: integers below 2^14, times the result.
// Two words, four elements, become the high bytes and the low ones, which have a sign.
template <typename T, int kWords>
__device__ inline float split_bytes(uint32_t (&q)[kWords]) {
  uint32_t largest = 0;  // as bits of a float without sign: there NaN is the largest
  for (uint32_t word : q) {
    const float2 two = unpack<T>(word);
    largest = max(largest, max(__float_as_uint(two.x) * 2, __float_as_uint(two.y) * 2));
  }
  for (int i = 1; i < 4; i *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, i));
  const uint32_t exponent = max(largest >> 24, 13);
  const float factor = __uint_as_float((267 - exponent) << 23);
  const auto bytes_of =
      [&](uint32_t word) {  // such a sum is rounded to an integer, in its low bits
        const float2 two = unpack<T>(word);
        return __byte_perm(__float_as_uint(fmaf(two.x, factor, 0x1.8p23f + 128)),
                           __float_as_uint(fmaf(two.y, factor, 0x1.8p23f + 128)), 0x5140);
      };
  for (int i = 0; i < kWords; i += 2) {
    const uint32_t x = bytes_of(q[i]), y = bytes_of(q[i + 1]);
    q[i] = __byte_perm(x, y, 0x7632);
    q[i + 1] = __byte_perm(x, y, 0x5410) ^ 0x80808080;
  }
  return exponent == 255 ? NAN : __uint_as_float((exponent - 13) << 23);
}

template <typename S>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) attend(const __grid_constant__ AttendCall p) {
  using T = typename S::Query;
  using F = typename S::Factor;
  using Cached = typename S::Cached;
  constexpr int D = S::D, NT = S::NT;
  extern __shared__ __align__(256) char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int g = lane / 4, t = lane % 4;  // as mma.sync numbers its lanes
  const int splits = p.plan.splits, rank = blockIdx.x % splits, unit = blockIdx.x / splits;
  const int row = unit / p.key_heads, key_head = unit % p.key_heads;
  const int group = p.heads / p.key_heads;
  const int first = warp * splits + rank, step = splits * warps;
  char* const ring = memory + warp * kRing;
  const uint32_t ring_address = address(ring);

  const auto at = [&](const Rows& x, auto type, int64_t token) {
    return static_cast<const decltype(type)*>(x.data) + row * x.batch + key_head * x.head +
           token * x.token;
  };
  // A warp copies contiguous bytes: pieces of several rows made memory a third slower. It reads
  // nothing past the capacity.
  constexpr int kTokens = S::kTokens, kAtOnce = 32 / S::kChunks;
  const int copied = lane / S::kChunks, chunk = lane % S::kChunks;
  const auto* key = at(p.keys, Cached(), first * kTokens + copied) + chunk * (16 / sizeof(Cached));
  const auto* value =
      at(p.values, Cached(), first * kTokens + copied) + chunk * (16 / sizeof(Cached));
  const float* key_scale = at(p.key_scale, float(), first * kTokens + lane);
  const float* value_scale = at(p.value_scale, float(), first * kTokens + lane);
  int next = first;  // the next tile to copy
  const auto copy_rows = [&](uint32_t to, const Cached*& from, int64_t stride, int left) {
    for (int i = 0; i < kTokens; i += kAtOnce)
      copy_16_once(to + S::place(i | copied, chunk) * 16, from + i * stride, i + copied < left);
    from += int64_t{step} * kTokens * stride;
  };
  const auto copy_next = [&](int stage) {
    const uint32_t to = ring_address + stage * S::kSlot;
    const int left = p.capacity - next * kTokens;
    copy_rows(to, key, p.keys.token, left);
    copy_rows(to + kTokens * S::kRow, value, p.values.token, left);
    if (S::is_int8 && lane < kTokens) {
      copy_4(to + 2 * kTokens * S::kRow + lane * 4, key_scale, lane < left);
      copy_4(to + 2 * kTokens * S::kRow + (kTokens + lane) * 4, value_scale, lane < left);
      key_scale += int64_t{step} * kTokens * p.key_scale.token;
      value_scale += int64_t{step} * kTokens * p.value_scale.token;
    }
    next += step;
  };
  const auto q_of = [&](int n) {
    return static_cast<const T*>(p.q.data) + row * p.q.batch +
           static_cast<int64_t>(key_head * group + min(n, group - 1)) * p.q.head;
  };

  // Prefetch the first data into L2 while the previous kernel finishes. This uses no values, so it
  // is correct even if that kernel still writes them.
  start_next_kernel();
  prefetch(p.lengths + row);
  if (lane < 2 * group) prefetch(q_of(lane / 2) + lane % 2 * (D / 2));
  const int64_t token = first * kTokens + lane % kTokens;
  if (token < p.capacity) {
    for (const Rows* x : {&p.keys, &p.values})
      prefetch(at(*x, Cached(), token) + lane / kTokens * (D / 2));
    if (S::is_int8 && lane < 2)
      prefetch(at(lane == 0 ? p.key_scale : p.value_scale, float(), first * kTokens));
  }
  wait_for_kernel_before();
  if (p.plan.is_cluster) arrive_at_cluster();
  const int given = p.lengths[row];
  // Fragments of q. The columns 2 t and 2 t + 1 are the heads t and t + 4; past the group they
  // repeat its last head. Load them first: the copies fill all queues.
  uint32_t q[NT][D / 8];
  for (int n = 0; n < NT; ++n) {
    const T* const from = q_of(n * 8 + g % 2 * 4 + g / 2) + t * (S::is_int8 ? 4 : 2);
    for (int i = 0; i < D / 8; i += 2) {
      if constexpr (S::is_int8) {
        const uint2 found = *reinterpret_cast<const uint2*>(from + i * 8);
        q[n][i] = found.x;
        q[n][i + 1] = found.y;
      } else {
        q[n][i] = *reinterpret_cast<const uint32_t*>(from + i * 8);
        q[n][i + 1] = *reinterpret_cast<const uint32_t*>(from + i * 8 + 8);
      }
    }
  }
  keep_order();
  const int length = min(max(given, 0), p.capacity), tiles = (length + kTokens - 1) / kTokens;
#pragma unroll 1
  for (int i = 0; i < S::kStages; ++i) {
    if (next < tiles) copy_next(i);
    __pipeline_commit();
  }

  float scale[NT][2];  // of the heads t and t + 4
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    float factor = p.scale * 1.4426950408889634f;  // for exp2 instead of exp
    if constexpr (S::is_int8) factor *= split_bytes<T>(q[n]);
    for (int i = 0; i < 2; ++i) scale[n][i] = __shfl_sync(~0u, factor, (2 * t + i) * 4);
  }
  float sums[S::kSteps][NT][4] = {};
  float max[NT][2], weight[NT][2] = {};
  for (int n = 0; n < NT; ++n) max[n][0] = max[n][1] = -INFINITY;
  const auto row_of = [&](int b, int i) {  // of a slot: this lane passes it to load_matrices()
    return (b * 16 * S::kChunks + S::place(lane % 16, i * 2 | lane / 16)) * 16;
  };
  constexpr int kRows = kTokens / 8;  // tokens of a tile that a lane has scores of
  int stage = 0;
  for (int tile = first; tile < tiles; tile += step) {
    __pipeline_wait_prior(S::kStages - 1);
    __syncwarp();  // the other lanes' copies
    char* const slot = ring + stage * S::kSlot;
    const uint32_t keys_at = ring_address + stage * S::kSlot,
                   values_at = keys_at + kTokens * S::kRow;
    const int left = length - tile * kTokens;  // tokens of this tile that count

    // Scores of tokens g (0, 1), g + 8 (2, 3), ... for the heads t (even) and t + 4 (odd).
    uint32_t loaded[S::kBlocks][S::kLoads][4];  // first keys, then values
    float score[NT][2 * kRows];
    for (int b = 0; b < S::kBlocks; ++b)
      for (int i = 0; i < S::kLoads; ++i)
        load_matrices<false>(loaded[b][i], keys_at + row_of(b, i));
    for (int b = 0; b < S::kBlocks; ++b) {
      for (int n = 0; n < NT; ++n) {
        // Two sums, of even and odd steps or of high and low bytes.
        std::conditional_t<S::is_int8, int, float> sum[2][4] = {};
        for (int i = 0; i < S::kSteps; ++i) {
          const int at = S::is_int8 ? i / 2 * 4 + i % 2 : i * 2;
          mma<F>(sum[i % 2], loaded[b][i / S::kStepsOfLoad], q[n][at], q[n][at + S::kStepsOfLoad]);
        }
        for (int i = 0; i < 4; ++i)
          score[n][4 * b + i] = sum[0][i] * (S::is_int8 ? 256 : 1) + sum[1][i];
      }
    }
    // int8: the key's scale goes into the score, the value's into the weight, and its logarithm
    // into what the maximum is taken of, so that weights fit into halves.
    float scale_of_key[kRows], scale_of_value[kRows], bonus[kRows];
    if constexpr (S::is_int8) {
      const float* scales = reinterpret_cast<const float*>(slot + 2 * kTokens * S::kRow);
      for (int i = 0; i < kRows; ++i) {
        scale_of_key[i] = scales[g + 8 * i];
        scale_of_value[i] = g + 8 * i < left ? scales[kTokens + g + 8 * i] : 0;
        // About log2: the bits of a float grow as its logarithm.
        bonus[i] = __float_as_int(fmaxf(fabsf(scale_of_value[i]), 0x1p-64f)) * 0x1p-23f - 127;
      }
    } else {
      for (int i = 0; i < kRows; ++i) {
        scale_of_key[i] = scale_of_value[i] = 1;
        bonus[i] = 0;
      }
      if (left < kTokens) {  // a weight of 0 does not help against NaN past the length
        uint4* values = reinterpret_cast<uint4*>(slot + kTokens * S::kRow);
#pragma unroll 1
        for (int i = left * S::kChunks + lane; i < kTokens * S::kChunks; i += 32) values[i] = {};
        __syncwarp();
      }
    }
    for (int b = 0; b < S::kBlocks; ++b)
      for (int i = 0; i < S::kLoads; ++i)
        load_matrices<true>(loaded[b][i], values_at + row_of(b, i));
    uint32_t x[S::kSteps][4];
    const auto convert = [&](int b) {
      for (int i = 0; i < S::kSteps; ++i) factor_of<S>(x[i], loaded[b][i / S::kStepsOfLoad], i);
    };
    convert(0);    // while the scores are computed
    __syncwarp();  // the slot is free
    if (next < tiles) copy_next(stage);
    __pipeline_commit();
    stage = stage + 1 == S::kStages ? 0 : stage + 1;

    bool grows = false;
    for (int n = 0; n < NT; ++n) {
      for (int i = 0; i < 2 * kRows; i += 3 - S::kOwn) {
        score[n][i] *= scale[n][i % 2] * scale_of_key[i / 2];
        if (g + i / 2 * 8 >= left) score[n][i] = -INFINITY;
        grows |= score[n][i] + bonus[i / 2] > max[n][i % 2] + 8;
      }
    }
    // A weight may be up to 2^8, so the maximum rarely has to follow: one vote, seldom a shuffle.
    if (__any_sync(~0u, grows)) {
      for (int n = 0; n < NT; ++n) {
        for (int i = 0; i < S::kOwn; ++i) {
          float most = max[n][i];
          for (int j = 0; j < kRows; ++j) most = fmaxf(most, score[n][2 * j + i] + bonus[j]);
          for (int j = 4; j < 32; j *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, j));
          const float factor = exp_2(max[n][i] - most);
          max[n][i] = most;
          weight[n][i] *= factor;
          for (int j = 0; j < S::kSteps; ++j) {
            sums[j][n][i] *= factor;
            sums[j][n][i + 2] *= factor;
          }
        }
      }
    }
    uint32_t weights[NT][kRows];
    for (int n = 0; n < NT; ++n) {
      for (int i = 0; i < kRows; ++i) {
        float w[2] = {};
        for (int j = 0; j < S::kOwn; ++j) {
          w[j] = exp_2(score[n][2 * i + j] - max[n][j]);
          weight[n][j] += w[j];
          w[j] *= scale_of_value[i];
        }
        weights[n][i] = transpose(pack<F>(w[0], w[1]));
      }
    }
    for (int b = 0; b < S::kBlocks; ++b) {
      if (b > 0) convert(b);
      for (int i = 0; i < S::kSteps; ++i)
        for (int n = 0; n < NT; ++n)
          mma<F>(sums[i][n], x[i], weights[n][2 * b], weights[n][2 * b + 1]);
    }
  }

  // Join the warps' parts, in the place of their rings.
  constexpr int kStride = D + 4, kQuads = D / 4;  // floats from head to head, so that banks differ
  __shared__ float2 stats[kMaxWarps][S::kHeads];
  [[maybe_unused]] __shared__ float2 stats_of_blocks[kMaxCluster][S::kHeads];
  [[maybe_unused]] __shared__ float4 sums_of_blocks[S::kHeads * kQuads];
  __pipeline_wait_prior(0);
  __syncwarp();
  for (int n = 0; n < NT; ++n) {
    for (int i = 0; i < S::kOwn; ++i) {
      for (int j = 4; j < 32; j *= 2) weight[n][i] += __shfl_xor_sync(~0u, weight[n][i], j);
      const int head = n * 8 + i * 4 + t;
      if (head >= group) continue;
      if (g == 0) stats[warp][head] = {max[n][i], weight[n][i]};
      float* to = reinterpret_cast<float*>(ring) + head * kStride + (S::is_int8 ? 2 * g : g);
      for (int j = 0; j < S::kSteps; ++j) {
        to[j * 16] = sums[j][n][i];
        to[j * 16 + (S::is_int8 ? 1 : 8)] = sums[j][n][i + 2];
      }
    }
  }
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  if (p.plan.is_cluster) wait_for_cluster();
#endif
  const int items = group * kQuads, shift = __ffs(splits) - 1;
  for (int e = threadIdx.x; e < items; e += blockDim.x) {
    const int head = e / kQuads, quad = e % kQuads;
    const Part all = join_parts<kMaxWarps>(
        warps, [&](int i) { return stats[i][head]; },
        [&](int i) {
          return reinterpret_cast<const float4*>(memory + i * kRing)[head * (kStride / 4) + quad];
        });
    if (splits == 1) {
      finish<T, D>(p, row, key_head * group + head, quad, all);
    } else if (!p.plan.is_cluster) {
      const int64_t part = static_cast<int64_t>(blockIdx.x) * group + head;
      sums_of(p)[part * kQuads + quad] = all.sum;
      if (quad == 0) stats_of(p)[part] = {all.max, all.weight};
#if __CUDA_ARCH__ >= 900
    } else {  // each block of a cluster finishes its share; splits is a power of 2
      float4* const to = &sums_of_blocks[rank * (items >> shift) + (e >> shift)];
      *cluster.map_shared_rank(to, e & (splits - 1)) = all.sum;
      if (quad < splits)
        *cluster.map_shared_rank(&stats_of_blocks[rank][head], quad) = {all.max, all.weight};
#endif
    }
  }
#if __CUDA_ARCH__ >= 900
  if (!p.plan.is_cluster) return;
  cluster.sync();
  for (int i = threadIdx.x; i < items >> shift; i += blockDim.x) {
    const int e = (i << shift) + rank, head = e / kQuads;
    const Part all = join_parts<kMaxCluster>(
        splits, [&](int j) { return stats_of_blocks[j][head]; },
        [&](int j) { return sums_of_blocks[j * (items >> shift) + i]; });
    finish<T, D>(p, row, key_head * group + head, e % kQuads, all);
  }
#endif
}

}  // namespace decode
