// Attention of one query over a cache of keys and values. docs/13_decode_attention.md explains it.
//
// The query heads that share a key head are the columns of a matrix product, 16 cached tokens its
// rows: S^T = K Q^T, then O^T = V^T P, both by mma.sync. A warp takes every n-th tile of tokens;
// cp.async copies them into a ring of its own. The parts of warps, and of blocks (by a cluster or
// by a second kernel), are joined in a fixed order, so two runs give the same bits.
#pragma once
#include <cooperative_groups.h>

#include "parts.cuh"

namespace decode {

template <typename T, bool kInt8, int D_, int NT_>  // NT: columns / 8
struct Shape {
  using Query = T;
  using Cached = std::conditional_t<kInt8, int8_t, T>;
  using Factor = std::conditional_t<kInt8, __half, T>;  // what tensor cores multiply
  static constexpr bool is_int8 = kInt8;
  static constexpr int D = D_, NT = NT_, kHeads = 8 * NT;
  static constexpr int kRow = D * sizeof(Cached);  // bytes of a token
  static constexpr int kChunks = kRow / 16, kSteps = D / 16;
  static constexpr int kStepsOfLoad = kInt8 ? 2 : 1;  // products that one load_matrices() feeds
  static constexpr int kSlot = kTile * (2 * kRow + (kInt8 ? 8 : 0));  // with int8 also scales
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
// Makes fragments for mma.sync of loaded matrices. 16 bytes hold 8 elements, or 16 of int8: there
// the even ones replace the first 8 and the odd ones the last 8, in both factors.
template <typename S, bool kTransposed>
__device__ inline void factors_of(uint32_t (&x)[4], const uint32_t (&loaded)[4], int step) {
  for (int i = 0; i < 2; ++i) {
    const uint32_t word = loaded[S::is_int8 ? step % 2 * 2 + i : i];
    x[kTransposed ? 2 * i : i] = S::is_int8 ? two_halves(word ^ 0x80808080, 0x4240) : word;
    x[kTransposed ? 2 * i + 1 : i + 2] =
        S::is_int8 ? two_halves(word ^ 0x80808080, 0x4341) : loaded[i + 2];
  }
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
  const int first = rank * warps + warp, step = splits * warps;
  char* const ring = memory + warp * kRing;
  const uint32_t ring_address = static_cast<uint32_t>(__cvta_generic_to_shared(ring));

  const auto at = [&](const Rows& x, auto type, int64_t token) {
    return static_cast<const decltype(type)*>(x.data) + row * x.batch + key_head * x.head +
           token * x.token;
  };
  // A warp copies contiguous bytes: pieces of several rows made memory a third slower. It reads
  // nothing past the capacity.
  constexpr int kAtOnce = 32 / S::kChunks;
  const int copied = lane / S::kChunks, chunk = lane % S::kChunks;
  const Cached* const key = at(p.keys, Cached(), copied) + chunk * (16 / sizeof(Cached));
  const Cached* const value = at(p.values, Cached(), copied) + chunk * (16 / sizeof(Cached));
  const auto copy_rows = [&](uint32_t to, const Cached* from, int64_t stride, int left) {
    for (int i = 0; i < kTile; i += kAtOnce, from += kAtOnce * stride)
      copy_16(to + S::place(i | copied, chunk) * 16, from, i + copied < left);
  };
  const auto copy_tile = [&](int tile, int stage) {
    const uint32_t to = ring_address + stage * S::kSlot;
    const int64_t token = int64_t{tile} * kTile;
    const int left = p.capacity - tile * kTile;
    copy_rows(to, key + token * p.keys.token, p.keys.token, left);
    copy_rows(to + kTile * S::kRow, value + token * p.values.token, p.values.token, left);
    if constexpr (S::is_int8) {  // 16 lanes copy scales of keys, 16 of values
      const int64_t at_token = token + lane % 16;
      copy_4(to + 2 * kTile * S::kRow + lane * 4,
             at(lane < 16 ? p.key_scale : p.value_scale, float(), at_token), at_token < p.capacity);
    }
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
  const int64_t token = first * kTile + lane % 16;
  if (token < p.capacity) {
    const Cached* from = at(lane < 16 ? p.keys : p.values, Cached(), token);
    prefetch(from);
    if (S::kRow > 128) prefetch(from + D / 2);
    if (S::is_int8 && lane % 16 == 0)
      prefetch(at(lane < 16 ? p.key_scale : p.value_scale, float(), token));
  }
  wait_for_kernel_before();
#if __CUDA_ARCH__ >= 900
  if (p.plan.is_cluster) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  const int given = p.lengths[row];
  // Fragments of q; heads past the group are zeros. Load them first: the copies fill all queues.
  uint32_t q[S::kSteps][NT][2];
  for (int n = 0; n < NT; ++n) {
    for (int i = 0; i < S::kSteps; ++i) {
      const bool is_head = n * 8 + g < group;
      const T* from = q_of(n * 8 + g) + i * 16 + t * (S::is_int8 ? 4 : 2);
      q[i][n][0] = is_head ? *reinterpret_cast<const uint32_t*>(from) : 0;
      q[i][n][1] = is_head ? *reinterpret_cast<const uint32_t*>(from + (S::is_int8 ? 2 : 8)) : 0;
    }
  }
  asm volatile("" ::: "memory");
  if (first * kTile < p.capacity) copy_tile(first, 0);  // needs no length
  commit();
  const int length = min(max(given, 0), p.capacity), tiles = (length + kTile - 1) / kTile;
#pragma unroll 1
  for (int i = 1; i < S::kStages; ++i) {
    if (first + i * step < tiles) copy_tile(first + i * step, i);
    commit();
  }

  float scale[NT][2];  // of the columns 2 t and 2 t + 1
  for (int n = 0; n < NT; ++n) {
    scale[n][0] = scale[n][1] = p.scale * 1.4426950408889634f;  // for exp2 instead of exp
    if constexpr (S::is_int8) {  // q becomes halves; a power of 2 keeps them from overflowing
      float largest = 0;
      for (int i = 0; i < S::kSteps; ++i) {  // even elements, then odd ones, as factors_of()
        const uint32_t even = __byte_perm(q[i][n][0], q[i][n][1], 0x5410);
        q[i][n][1] = __byte_perm(q[i][n][0], q[i][n][1], 0x7632);
        q[i][n][0] = even;
      }
      for (int i = 0; i < 2 * S::kSteps; ++i) {
        const float2 two = unpack<T>(q[i / 2][n][i % 2]);
        largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      uint32_t exponent = __float_as_uint(largest) >> 23;
      if (exponent == 0 || exponent >= 254) exponent = 127;  // nothing to scale; infinity, NaN
      const float down = __uint_as_float((254 - exponent) << 23);
      for (int i = 0; i < 2 * S::kSteps; ++i) {
        const float2 two = unpack<T>(q[i / 2][n][i % 2]);
        q[i / 2][n][i % 2] = pack<F>(two.x * down, two.y * down);
      }
      const float up = __uint_as_float(exponent << 23);
      for (int i = 0; i < 2; ++i) scale[n][i] *= __shfl_sync(~0u, up, (2 * t + i) * 4);
    }
  }
  float sums[S::kSteps][NT][4] = {};
  float max[NT][2], weight[NT][2] = {};
  for (int n = 0; n < NT; ++n) max[n][0] = max[n][1] = -INFINITY;
  const auto row_of = [&](int i) {  // the row of a slot that this lane passes to load_matrices()
    return S::place(lane % 16, i / S::kStepsOfLoad * 2 | lane / 16) * 16;
  };
  int stage = 0;
  for (int tile = first; tile < tiles; tile += step) {
    wait<S::kStages - 1>();
    __syncwarp();  // the other lanes' copies
    char* const slot = ring + stage * S::kSlot;
    const uint32_t keys_at = ring_address + stage * S::kSlot, values_at = keys_at + kTile * S::kRow;
    const int left = length - tile * kTile;  // tokens of this tile that count

    // Scores of tokens g (0, 1) and g + 8 (2, 3) for the heads 2 t (0, 2) and 2 t + 1 (1, 3).
    uint32_t loaded[S::kSteps / S::kStepsOfLoad][4];  // first keys, then values
    float score[NT][4] = {}, odd[NT][4] = {};         // two sums, so that fewer products wait
    for (int i = 0; i < S::kSteps; ++i) {
      uint32_t x[4];
      if (i % S::kStepsOfLoad == 0)
        load_matrices<false>(loaded[i / S::kStepsOfLoad], keys_at + row_of(i));
      factors_of<S, false>(x, loaded[i / S::kStepsOfLoad], i);
      for (int n = 0; n < NT; ++n) multiply<F>(i % 2 ? odd[n] : score[n], x, q[i][n]);
    }
    // int8: the key's scale goes into the score, the value's into the weight, and its logarithm
    // into what the maximum is taken of, so that weights fit into halves.
    float key_scale[2] = {1, 1}, value_scale[2] = {1, 1}, bonus[2] = {};
    if constexpr (S::is_int8) {
      const float* scales = reinterpret_cast<const float*>(slot + 2 * kTile * S::kRow);
      for (int i = 0; i < 2; ++i) {
        key_scale[i] = scales[g + 8 * i];
        value_scale[i] = g + 8 * i < left ? scales[kTile + g + 8 * i] : 0;
        bonus[i] = __log2f(fmaxf(value_scale[i], 0x1p-64f));
      }
    } else if (left < kTile) {  // a weight of 0 does not help against NaN past the length
      uint4* values = reinterpret_cast<uint4*>(slot + kTile * S::kRow);
#pragma unroll 1
      for (int i = left * S::kChunks + lane; i < kTile * S::kChunks; i += 32) values[i] = {};
      __syncwarp();
    }
    for (int i = 0; i < S::kSteps; i += S::kStepsOfLoad)
      load_matrices<true>(loaded[i / S::kStepsOfLoad], values_at + row_of(i));
    __syncwarp();  // the slot is free
    if (tile + S::kStages * step < tiles) copy_tile(tile + S::kStages * step, stage);
    commit();
    stage = stage + 1 == S::kStages ? 0 : stage + 1;

    bool grows = false;
    for (int n = 0; n < NT; ++n) {
      for (int i = 0; i < 4; ++i) {
        score[n][i] = (score[n][i] + odd[n][i]) * (scale[n][i % 2] * key_scale[i / 2]);
        if (g + i / 2 * 8 >= left) score[n][i] = -INFINITY;
        grows |= score[n][i] + bonus[i / 2] > max[n][i % 2] + 8;
      }
    }
    // A weight may be up to 2^8, so the maximum rarely has to follow: one vote, seldom a shuffle.
    if (__any_sync(~0u, grows)) {
      for (int n = 0; n < NT; ++n) {
        for (int i = 0; i < 2; ++i) {
          float most = fmaxf(score[n][i] + bonus[0], score[n][i + 2] + bonus[1]);
          for (int j = 4; j < 32; j *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, j));
          most = fmaxf(most, max[n][i]);
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
    uint32_t weights[NT][2];
    for (int n = 0; n < NT; ++n) {
      for (int i = 0; i < 2; ++i) {
        const float x = exp_2(score[n][2 * i] - max[n][0]);
        const float y = exp_2(score[n][2 * i + 1] - max[n][1]);
        weight[n][0] += x;
        weight[n][1] += y;
        weights[n][i] = transpose(pack<F>(x * value_scale[i], y * value_scale[i]));
      }
    }
    for (int i = 0; i < S::kSteps; ++i) {
      uint32_t x[4];
      factors_of<S, true>(x, loaded[i / S::kStepsOfLoad], i);
      for (int n = 0; n < NT; ++n) multiply<F>(sums[i][n], x, weights[n]);
    }
  }

  // Join the warps' parts, in the place of their rings.
  constexpr int kStride = D + 4, kQuads = D / 4;  // floats from head to head, so that banks differ
  __shared__ float2 stats[kMaxWarps][S::kHeads];
  [[maybe_unused]] __shared__ float2 stats_of_blocks[kMaxCluster][S::kHeads];
  [[maybe_unused]] __shared__ float4 sums_of_blocks[S::kHeads * kQuads];
  wait<0>();
  __syncwarp();
  for (int n = 0; n < NT; ++n) {
    for (int i = 0; i < 2; ++i) {
      for (int j = 4; j < 32; j *= 2) weight[n][i] += __shfl_xor_sync(~0u, weight[n][i], j);
      const int head = n * 8 + 2 * t + i;
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
  if (p.plan.is_cluster) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
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
