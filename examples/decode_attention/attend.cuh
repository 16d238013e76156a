// Attention of one query over a cache of keys and values. docs/13_decode_attention.md explains it.
//
// The query heads that share a key head are the columns of a matrix product, 16 cached tokens its
// rows: S^T = K Q^T, then O^T = V^T P, both by mma.sync. A warp takes every n-th tile of 16 tokens;
// cp.async copies them into a ring of its own. A lane reads 16 bytes of d as they lie: their order
// does not matter if both factors agree. The parts of warps, and of blocks (by a cluster or by a
// second kernel), are joined in a fixed order, so two runs give the same bits.
#pragma once
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#include <type_traits>

#include "decode_attention.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "decode_attention needs GPUs of sm_80 or newer; does TORCH_CUDA_ARCH_LIST name an older one?"
#endif

namespace decode {

template <typename T, bool kInt8, int D_, int NT_>  // NT: columns / 8
struct Shape {
  using Query = T;
  using Cached = std::conditional_t<kInt8, int8_t, T>;
  using Factor = std::conditional_t<kInt8, __half, T>;  // what tensor cores multiply
  static constexpr bool is_int8 = kInt8;
  static constexpr int D = D_, NT = NT_, kHeads = 8 * NT;
  static constexpr int kRow = D * sizeof(Cached);  // bytes of a token
  static constexpr int kChunks = kRow / 16;
  // Where 16 bytes of a token lie in the ring, in units of 16 bytes. Shuffled, so that 8 lanes that
  // read at once use all banks: two tokens' keys, or four tokens' values.
  __device__ static int place_of_key(int token, int chunk) {
    return token * kChunks + (chunk ^ (kChunks < 8 ? 0 : token % 2 * 4));
  }
  __device__ static int place_of_value(int token, int chunk) {
    return token * kChunks + (chunk ^ (kChunks < 8 ? token / 2 % 4 : token / 2 % 4 * 2));
  }
  static constexpr int kKeyLoads = kRow / 64;  // 4 lanes share a token's key, 16 bytes each
  static constexpr int kPiece = kRow < 128 ? kRow / 8 : 16;  // 8 lanes share a token's value
  using Piece = std::conditional_t<kPiece == 16, uint4, uint2>;
  static constexpr int kValueLoads = kRow / 8 / kPiece;
  static constexpr int kSlot = 2 * kTile * kRow + (kInt8 ? 2 * kTile * 4 : 0);
  static constexpr int kStages = kRing / kSlot;
  static constexpr int kStep = 16 / sizeof(Cached);          // elements of d in 16 bytes of a key
  static constexpr int kElements = kPiece / sizeof(Cached);  // in a piece of a value
};

// Copies 16 bytes to shared memory in the background. A cache is read once in a step, so it should
// leave L2 first.
__device__ inline void copy_16(uint32_t to, const void* from) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(policy)
               : "memory");
}
__device__ inline void copy_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ inline void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// Programmatic dependent launch: the next kernel may start, and this one waits for the one before.
__device__ inline void start_next_and_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
#endif
}

// c += a * b. a: 16 x 16, b: 16 x 8.
template <typename T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

template <typename To, typename From>
__device__ inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<const To&>(x);
}
template <typename T>
__device__ inline uint32_t pack(float x, float y) {
  if constexpr (std::is_same_v<T, __half>)
    return bits<uint32_t>(__floats2half2_rn(x, y));
  else
    return bits<uint32_t>(__floats2bfloat162_rn(x, y));
}
template <typename T>
__device__ inline float2 unpack(uint32_t x) {
  if constexpr (std::is_same_v<T, __half>)
    return __half22float2(bits<__half2>(x));
  else
    return __bfloat1622float2(bits<__nv_bfloat162>(x));
}
__device__ inline uint32_t word_of(uint2 x, int i) { return i == 0 ? x.x : x.y; }
__device__ inline uint32_t word_of(uint4 x, int i) {
  return i < 2 ? word_of(uint2{x.x, x.y}, i) : word_of(uint2{x.z, x.w}, i - 2);
}
__device__ inline float exp_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Lane i held row i / 4 of an 8 x 8 matrix, columns 2 (i % 4) and the next; then a column's rows.
__device__ inline uint32_t transpose(uint32_t x) {
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x));
  return x;
}
// Two bytes of a word, x + 128 each, as exact halves: 0x6400 + n reads 1024 + n.
__device__ inline uint32_t two_halves(uint32_t word, uint32_t which) {
  const uint32_t both = __byte_perm(word, 0x64646464, which);
  return bits<uint32_t>(__hsub2(bits<__half2>(both), bits<__half2>(0x64806480)));
}

// A part of a softmax: the sums of exp2(score - max) * value and of exp2(score - max).
struct Part {
  float4 sum;
  float max, weight;
};
// Joins `count` parts. stat(i): max and weight; sum(i): four columns.
template <typename Stat, typename Sum>
__device__ inline Part join_parts(int count, Stat stat, Sum sum) {
  Part all = {{0, 0, 0, 0}, -INFINITY, 0};
#pragma unroll 4
  for (int i = 0; i < count; ++i) all.max = fmaxf(all.max, stat(i).x);
  const float max = all.max == -INFINITY ? 0 : all.max;  // no tokens: factors of 0, not NaN
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float2 found = stat(i);
    const float4 x = sum(i);
    const float factor = exp_2(found.x - max);
    all.weight += factor * found.y;
    all.sum = {all.sum.x + factor * x.x, all.sum.y + factor * x.y, all.sum.z + factor * x.z,
               all.sum.w + factor * x.w};
  }
  return all;
}

// Writes four columns of a query head. Without tokens they are 0.
template <typename T, int D>
__device__ inline void finish(const AttendCall& p, int row, int head, int quad, const Part& x) {
  const float f = x.weight == 0 ? 0 : 1 / x.weight;
  T* to = static_cast<T*>(p.out) + (static_cast<int64_t>(row) * p.heads + head) * D + quad * 4;
  *reinterpret_cast<uint2*>(to) = {pack<T>(x.sum.x * f, x.sum.y * f),
                                   pack<T>(x.sum.z * f, x.sum.w * f)};
}

template <typename S>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) attend(const __grid_constant__ AttendCall p) {
  using T = typename S::Query;
  using F = typename S::Factor;
  using Cached = typename S::Cached;
  constexpr int D = S::D, NT = S::NT, kRow = S::kRow;
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int g = lane / 4, t = lane % 4;  // as mma.sync numbers its lanes
  const int splits = p.plan.splits, rank = blockIdx.x % splits, unit = blockIdx.x / splits;
  const int row = unit / p.key_heads, key_head = unit % p.key_heads;
  const int group = p.heads / p.key_heads;
  const auto start_of = [&](const Rows& x) { return row * x.batch + key_head * x.head; };
  const auto* keys = static_cast<const Cached*>(p.keys.data) + start_of(p.keys);
  const auto* values = static_cast<const Cached*>(p.values.data) + start_of(p.values);

  char* const ring = reinterpret_cast<char*>(memory) + warp * kRing;
  const uint32_t ring_address = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  const int last = p.capacity - 1;  // nothing past it is read; past the length nothing is used
  // 32 lanes copy neighbouring bytes: memory is a third slower if a warp asks for pieces of rows.
  const auto copy_rows = [&](const Cached* from, unsigned stride, int tile, uint32_t to,
                             auto place) {
#pragma unroll
    for (int i = 0; i < kRow / 32; ++i) {
      const int token = (i * 32 + lane) / S::kChunks, chunk = lane % S::kChunks;
      const unsigned row_start = min(tile * kTile + token, last) * stride;  // in units of 16 bytes
      copy_16(to + place(token, chunk) * 16,
              reinterpret_cast<const uint4*>(from) + chunk + row_start);
    }
  };
  const unsigned key_stride = p.keys.token / S::kStep, value_stride = p.values.token / S::kStep;
  const auto copy_tile = [&](int tile, int stage) {
    const uint32_t to = ring_address + stage * S::kSlot;
    copy_rows(keys, key_stride, tile, to, S::place_of_key);
    copy_rows(values, value_stride, tile, to + kTile * kRow, S::place_of_value);
    if constexpr (S::is_int8) {  // 16 lanes copy scales of keys, 16 of values
      const Rows& scales = lane < 16 ? p.key_scale : p.value_scale;
      const int64_t token = min(tile * kTile + lane % 16, last);
      copy_4(to + 2 * kTile * kRow + lane * 4,
             static_cast<const float*>(scales.data) + start_of(scales) + token * scales.token);
    }
  };
  const auto q_of = [&](int n) {
    const int64_t head = key_head * group + min(n, group - 1);
    return static_cast<const T*>(p.q.data) + row * p.q.batch + head * p.q.head;
  };

  // The first tile does not depend on the length. While the kernel before ends, move it into L2:
  // its values are not looked at, so this is right even if that kernel is still writing them.
  const int first = rank * warps + warp, step = splits * warps;
#if __CUDA_ARCH__ >= 900
  if (first * kTile < p.capacity) {
    const int64_t token = min(first * kTile + lane % 16, last);
    const Cached* from = lane < 16 ? keys + token * p.keys.token : values + token * p.values.token;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "n"(kRow));
    if (lane < 2 * group)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(q_of(lane / 2) + lane % 2 * (D / 2)));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.lengths + row));
  }
#endif
  start_next_and_wait();
#if __CUDA_ARCH__ >= 900
  if (p.plan.is_cluster) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  const int given = p.lengths[row];
  if (first * kTile < p.capacity) copy_tile(first, 0);
  commit();

  // Fragments of q; heads past the group are zeros.
  uint32_t q[S::kKeyLoads][S::kStep / 4][NT][2];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const bool is_head = n * 8 + g < group;
    const T* from = q_of(n * 8 + g) + t * S::kStep;
    for (int i = 0; i < S::kKeyLoads; ++i) {
      for (int j = 0; j < S::kStep / 4; ++j) {
        const T* four = from + i * 4 * S::kStep + j * 4;
        const uint2 found = is_head ? *reinterpret_cast<const uint2*>(four) : uint2{0, 0};
        q[i][j][n][0] = found.x;
        q[i][j][n][1] = found.y;
      }
    }
  }

  const int length = min(max(given, 0), p.capacity), tiles = (length + kTile - 1) / kTile;
  if (splits > 1 && !p.plan.is_cluster && rank * warps >= tiles) return;  // join() knows
#pragma unroll 1
  for (int i = 1; i < S::kStages; ++i) {
    if (first + i * step < tiles) copy_tile(first + i * step, i);
    commit();
  }

  float scale[NT][2];  // of the columns 2 t and 2 t + 1
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    scale[n][0] = scale[n][1] = p.scale * 1.4426950408889634f;  // for exp2 instead of exp
    if constexpr (S::is_int8) {  // q becomes halves; a power of 2 keeps them from overflowing
      float largest = 0;
      const auto each = [&](auto function) {
        for (int i = 0; i < S::kKeyLoads; ++i)
          for (int j = 0; j < S::kStep / 4; ++j)
            for (int k = 0; k < 2; ++k) function(q[i][j][n][k]);
      };
      each([&](uint32_t& x) {
        const float2 two = unpack<T>(x);
        largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
      });
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      uint32_t exponent = __float_as_uint(largest) >> 23;
      if (exponent == 0 || exponent >= 254) exponent = 127;  // nothing to scale; infinity, NaN
      const float down = __uint_as_float((254 - exponent) << 23);
      each([&](uint32_t& x) { x = pack<F>(unpack<T>(x).x * down, unpack<T>(x).y * down); });
      const float up = __uint_as_float(exponent << 23);
      for (int i = 0; i < 2; ++i) scale[n][i] *= __shfl_sync(~0u, up, (2 * t + i) * 4);
    }
  }

  float sums[S::kValueLoads][S::kElements / 2][NT][4] = {};
  float max[NT][2], weight[NT][2] = {};
  for (int n = 0; n < NT; ++n) max[n][0] = max[n][1] = -INFINITY;
  // Where this lane's keys and values begin in a slot; all else is constant.
  const int key_at[2] = {S::place_of_key(g, t), S::place_of_key(g, 4 + t)};
  const int value_at =
      kTile * kRow + S::place_of_value(2 * t, g * S::kPiece / 16) * 16 + g * S::kPiece % 16;
  int stage = 0;
#pragma unroll 1
  for (int tile = first; tile < tiles; tile += step) {
    wait<S::kStages - 1>();
    __syncwarp();  // the other lanes' copies
    const char* slot = ring + stage * S::kSlot;
    const int left = length - tile * kTile;  // tokens of this tile that count

    // Scores of tokens g (0, 1) and g + 8 (2, 3) for the heads 2 t (0, 2) and 2 t + 1 (1, 3).
    float score[NT][4] = {}, odd[NT][4] = {};  // two sums: a product waits for the one before
#pragma unroll
    for (int i = 0; i < S::kKeyLoads; ++i) {
      const auto* from = reinterpret_cast<const uint4*>(slot) + key_at[i % 2] + i / 2 * 8;
      const uint4 both[2] = {from[0], from[8 * S::kChunks]};
#pragma unroll
      for (int j = 0; j < S::kStep / 4; ++j) {
        uint32_t key[4];
        for (int k = 0; k < 2; ++k) {
          if constexpr (S::is_int8) {
            const uint32_t word = word_of(both[k], j) ^ 0x80808080;
            key[k] = two_halves(word, 0x4140);
            key[k + 2] = two_halves(word, 0x4342);
          } else {
            key[k] = word_of(both[k], 2 * j);
            key[k + 2] = word_of(both[k], 2 * j + 1);
          }
        }
        for (int n = 0; n < NT; ++n) multiply<F>(j % 2 ? odd[n] : score[n], key, q[i][j][n]);
      }
    }

    // int8: the key's scale goes into the score, the value's into the weight, and its logarithm
    // into what the maximum is taken of, so that weights fit into halves.
    float value_scale[2] = {1, 1}, bonus[2] = {};
    bool grows = false;
    float key_scale[2] = {1, 1};
    if constexpr (S::is_int8) {
      const float* scales = reinterpret_cast<const float*>(slot + 2 * kTile * kRow);
      for (int i = 0; i < 2; ++i) {
        key_scale[i] = scales[g + 8 * i];
        value_scale[i] = g + 8 * i < left ? scales[kTile + g + 8 * i] : 0;
        bonus[i] = __log2f(fmaxf(value_scale[i], 0x1p-64f));
      }
    }
    // Values of the tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9; then the slot is free.
    typename S::Piece piece[S::kValueLoads][4];
#pragma unroll
    for (int i = 0; i < S::kValueLoads; ++i) {
      for (int j = 0; j < 4; ++j) {
        const int token = j % 2 + j / 2 * 8;  // after 2 t
        piece[i][j] = *reinterpret_cast<const typename S::Piece*>(
            slot + value_at + (token * S::kChunks + i * 8) * 16);
      }
    }
    if (!S::is_int8 && left < kTile) {  // a weight of 0 does not help against NaN past the length
      asm volatile("");                 // a branch, not 32 selects for each tile
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        for (int i = 0; i < S::kValueLoads; ++i)
          if (2 * t + j % 2 + j / 2 * 8 >= left) piece[i][j] = {};
      }
    }
    __syncwarp();
    if (tile + S::kStages * step < tiles) copy_tile(tile + S::kStages * step, stage);
    commit();
    stage = stage + 1 == S::kStages ? 0 : stage + 1;

#pragma unroll
    for (int n = 0; n < NT; ++n) {
      for (int i = 0; i < 4; ++i) {
        score[n][i] = (score[n][i] + odd[n][i]) * (scale[n][i % 2] * key_scale[i / 2]);
        if (g + i / 2 * 8 >= left) score[n][i] = -INFINITY;
        grows |= score[n][i] + bonus[i / 2] > max[n][i % 2] + 8;
      }
    }
    // A weight may be up to 2^8, so the maximum rarely has to follow: one vote, seldom a shuffle.
    if (__any_sync(~0u, grows)) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        for (int i = 0; i < 2; ++i) {
          float most = fmaxf(score[n][i] + bonus[0], score[n][i + 2] + bonus[1]);
          for (int j = 4; j < 32; j *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, j));
          most = fmaxf(most, max[n][i]);
          const float factor = exp_2(max[n][i] - most);
          max[n][i] = most;
          weight[n][i] *= factor;
          for (int j = 0; j < S::kValueLoads; ++j) {
            for (int k = 0; k < S::kElements / 2; ++k) {
              sums[j][k][n][i] *= factor;
              sums[j][k][n][i + 2] *= factor;
            }
          }
        }
      }
    }
    uint32_t weights[NT][2];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      for (int i = 0; i < 2; ++i) {
        const float x = exp_2(score[n][2 * i] - max[n][0]);
        const float y = exp_2(score[n][2 * i + 1] - max[n][1]);
        weight[n][0] += x;
        weight[n][1] += y;
        weights[n][i] = transpose(pack<F>(x * value_scale[i], y * value_scale[i]));
      }
    }

#pragma unroll
    for (int i = 0; i < S::kValueLoads; ++i) {
#pragma unroll
      for (int k = 0; k < S::kElements / 2; ++k) {
        uint32_t value[4];  // elements 2 k, 2 k + 1 of two tokens, then of the other two
        for (int j = 0; j < 2; ++j) {
          if constexpr (S::is_int8) {
            const uint32_t x = word_of(piece[i][2 * j], k / 2),
                           y = word_of(piece[i][2 * j + 1], k / 2);
            const uint32_t both = __byte_perm(x, y, k % 2 ? 0x7362 : 0x5140) ^ 0x80808080;
            value[2 * j] = two_halves(both, 0x4140);
            value[2 * j + 1] = two_halves(both, 0x4342);
          } else {
            const uint32_t x = word_of(piece[i][2 * j], k), y = word_of(piece[i][2 * j + 1], k);
            value[2 * j] = __byte_perm(x, y, 0x5410);
            value[2 * j + 1] = __byte_perm(x, y, 0x7632);
          }
        }
        for (int n = 0; n < NT; ++n) multiply<F>(sums[i][k][n], value, weights[n]);
      }
    }
  }

  // Join the warps' parts, in the place of their rings.
  constexpr int kStride = D + 4, kQuads = D / 4;  // floats from head to head, so that banks differ
  __shared__ float2 stats[kMaxWarps][S::kHeads];
  [[maybe_unused]] __shared__ float2 stats_of_blocks[kMaxCluster][S::kHeads];
  [[maybe_unused]] __shared__ float4 sums_of_blocks[S::kHeads * kQuads + kMaxCluster];
  wait<0>();
  __syncwarp();
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int j = 4; j < 32; j *= 2) weight[n][i] += __shfl_xor_sync(~0u, weight[n][i], j);
      const int head = n * 8 + 2 * t + i;
      if (head >= group) continue;
      if (g == 0) stats[warp][head] = {max[n][i], weight[n][i]};
      for (int j = 0; j < S::kValueLoads; ++j) {
        float4* to = reinterpret_cast<float4*>(ring) + head * (kStride / 4) +
                     (j * 8 + g) * (S::kElements / 4);
        for (int k = 0; k < S::kElements / 4; ++k)
          to[k] = {sums[j][2 * k][n][i], sums[j][2 * k][n][i + 2], sums[j][2 * k + 1][n][i],
                   sums[j][2 * k + 1][n][i + 2]};
      }
    }
  }
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  if (p.plan.is_cluster) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
  const int items = group * kQuads;
  [[maybe_unused]] const int owned = (items + splits - 1) / splits;  // by each block of a cluster
  for (int e = threadIdx.x; e < items; e += blockDim.x) {
    const int head = e / kQuads, quad = e % kQuads;
    const Part all = join_parts(
        warps, [&](int i) { return stats[i][head]; },
        [&](int i) {
          return reinterpret_cast<const float4*>(reinterpret_cast<const char*>(memory) +
                                                 i * kRing)[head * (kStride / 4) + quad];
        });
    if (splits == 1) {
      finish<T, D>(p, row, key_head * group + head, quad, all);
    } else if (!p.plan.is_cluster) {
      const int64_t parts = static_cast<int64_t>(p.batch) * p.key_heads * splits;
      reinterpret_cast<float4*>(p.scratch)[static_cast<int64_t>(blockIdx.x) * items + e] = all.sum;
      auto* to = reinterpret_cast<float2*>(p.scratch + parts * items * 4);
      if (quad == 0) to[static_cast<int64_t>(blockIdx.x) * group + head] = {all.max, all.weight};
#if __CUDA_ARCH__ >= 900
    } else {
      *cluster.map_shared_rank(sums_of_blocks + rank * owned + e / splits, e % splits) = all.sum;
      if (quad < splits)
        *cluster.map_shared_rank(&stats_of_blocks[rank][head], quad) = {all.max, all.weight};
#endif
    }
  }
#if __CUDA_ARCH__ >= 900
  if (!p.plan.is_cluster) return;
  cluster.sync();
  for (int e = rank + threadIdx.x * splits; e < items; e += blockDim.x * splits) {
    const int head = e / kQuads;
    const Part all = join_parts(
        splits, [&](int i) { return stats_of_blocks[i][head]; },
        [&](int i) { return sums_of_blocks[i * owned + e / splits]; });
    finish<T, D>(p, row, key_head * group + head, e % kQuads, all);
  }
#endif
}

// The second kernel: a block joins the parts of one query head.
constexpr int kJoiners = 8;  // threads for four columns
template <typename T, int D>
__global__ void __launch_bounds__(kJoiners* D / 4) join(const __grid_constant__ AttendCall p) {
  constexpr int kQuads = D / 4;
  __shared__ Part found[kJoiners][kQuads];
  const int group = p.heads / p.key_heads, splits = p.plan.splits;
  const int quad = threadIdx.x % kQuads, member = threadIdx.x / kQuads;
  const int row = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
  const int64_t parts = static_cast<int64_t>(p.batch) * p.key_heads * splits;
  const int64_t first = (static_cast<int64_t>(row) * p.key_heads + head / group) * splits;
  const auto* sums = reinterpret_cast<const float4*>(p.scratch) + first * group * kQuads;
  const auto* stats =
      reinterpret_cast<const float2*>(p.scratch + parts * group * D) + first * group;
  start_next_and_wait();
  const int tiles = (min(max(p.lengths[row], 0), p.capacity) + kTile - 1) / kTile;
  const int count = min(splits, (tiles + p.plan.warps - 1) / p.plan.warps);  // others wrote nothing
  const int mine = (splits - member + kJoiners - 1) / kJoiners;  // reads do not wait for the length
  const auto at = [&](int i) { return (member + i * kJoiners) * group + head % group; };
  const auto is_written = [&](int i) { return member + i * kJoiners < count; };
  found[member][quad] = join_parts(
      mine,
      [&](int i) {
        const float2 stat = stats[at(i)];
        return is_written(i) ? stat : float2{-INFINITY, 0};
      },
      [&](int i) {
        const float4 sum = sums[at(i) * kQuads + quad];
        return is_written(i) ? sum : float4{0, 0, 0, 0};
      });
  __syncthreads();
  if (member > 0) return;
  const Part all = join_parts(
      kJoiners, [&](int i) { return float2{found[i][quad].max, found[i][quad].weight}; },
      [&](int i) { return found[i][quad].sum; });
  finish<T, D>(p, row, head, quad, all);
}

}  // namespace decode
