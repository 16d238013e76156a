// y = x * W^T, with W in 4-bit codes, on tensor cores. docs/12_int4_linear.md explains it.
//
// A warp computes R tiles of 16 rows of W for NT * 8 rows of x, over its share of K. Codes, scales,
// zeros and x are copied by cp.async into a ring of STAGES slots, each for one group of 128
// columns. A block has WR warps along W's rows, which share x, and WK warps along K, whose sums are
// added at the end; so are those of a cluster of CLUSTER blocks. Every order is fixed: no atomics.
#pragma once
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <stddef.h>
#include <stdint.h>
#include <type_traits>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "int4_linear needs GPUs of sm_80 or newer; does TORCH_CUDA_ARCH_LIST name an older one?"
#endif

namespace four_bit {

constexpr int kGroup = 128;  // columns that share a scale and a zero
constexpr int kTile = 16;    // rows of W in a fragment of mma.sync

// A code becomes a number without a conversion: its 4 bits are put into a mantissa, from bit 3 on,
// under an exponent that makes them count as ones. So code 5 reads 16 + 5 in bfloat16, 128 + 5 in
// float16. kMagicNumber is that 16 or 128.
template <typename T>
struct Half;
template <>
struct Half<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr uint32_t kMagic = 0x41804180, kOnes = 0x3f803f80;
  static constexpr float kMagicNumber = 16;
  __device__ static Pair pair(float2 x) { return __float22bfloat162_rn(x); }
  __device__ static float2 floats(Pair x) { return __bfloat1622float2(x); }
};
template <>
struct Half<__half> {
  using Pair = __half2;
  static constexpr uint32_t kMagic = 0x58005800, kOnes = 0x3c003c00;
  static constexpr float kMagicNumber = 128;
  __device__ static Pair pair(float2 x) { return __float22half2_rn(x); }
  __device__ static float2 floats(Pair x) { return __half22float2(x); }
};

template <typename To, typename From>
__device__ inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<const To&>(x);
}

// The magic number + zero, for any zero of 8 bits: 2^23 has the exponent under which a mantissa's
// last bit counts as one.
template <typename T>
__device__ inline float magic_plus(uint32_t zero) {
  return __uint_as_float(0x4b000000 | zero) - (8388608 - Half<T>::kMagicNumber);
}

template <typename T>
__device__ inline typename Half<T>::Pair magic_pair(uint32_t zero) {
  return Half<T>::pair({magic_plus<T>(zero), magic_plus<T>(zero)});
}

struct alignas(16) Words {
  uint32_t at[4];
};

template <typename T>
struct Problem {
  T* y;                 // [batch, n]
  const T* x;           // [batch, k]
  const Words* codes;   // [n / 16, k / 64, 32 lanes]
  const T* scale;       // [k / 128, n]
  const uint8_t* zero;  // [k / 128, n]
  const T* bias;        // [n], or null
  int batch, n, k;
};

template <int R_, int NT_, int WR_, int WK_, int STAGES_, int CLUSTER_, int BLOCKS_>
struct Shape {
  static constexpr int R = R_, NT = NT_, WR = WR_, WK = WK_, STAGES = STAGES_, CLUSTER = CLUSTER_;
  static constexpr int BLOCKS = BLOCKS_;  // that should fit on a multiprocessor
  static constexpr int kRows = WR * R * kTile, kBatch = NT * 8, kThreads = 32 * WR * WK;
  static constexpr int kStride = kRows + 4;  // floats from sum to sum, so that banks differ
  struct Slot {
    Words codes[WR * R][2][32];  // a lane reads what it has copied itself
    Words x[NT][4][32];
    uint4 affine[WR][3 * R];  // scales, then zeros
  };
  static constexpr uint32_t kX = offsetof(Slot, x), kAffine = offsetof(Slot, affine);
  static constexpr int kRing = WK * STAGES * static_cast<int>(sizeof(Slot));
  static constexpr int kSums = WK * kBatch * kStride * 4;  // in the ring's place, at the end
  static constexpr int kParts = CLUSTER > 1 ? kRows * kBatch * 4 : 0;
  static constexpr int kShared = (kRing > kSums ? kRing : kSums) + kParts;
};

// Copy 16 bytes to shared memory in the background; those past `bytes` become zeros.
__device__ inline void copy_16(uint32_t to, const void* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// c += a * b. a: 16 x 16 of W, b: 16 x 8 of x. Not volatile, so that the compiler may interleave.
template <typename T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Codes i and i + 4 of a word, each under the magic exponent: (word >> 4 * i) & mask | magic, as
// one lop3. The word is a circle: code 7 begins with its last bit.
template <typename T>
__device__ inline uint32_t two_codes(uint32_t word, int i) {
  const uint32_t turned = i < 3 ? word >> 4 * i : __funnelshift_r(word, word, 12);
  uint32_t pair;
  asm("lop3.b32 %0, %1, 0x00780078, %2, 0xea;" : "=r"(pair) : "r"(turned), "r"(Half<T>::kMagic));
  return pair;
}

// One group for few rows of x: (code - zero) * scale is taken apart. With m for the magic number,
//   sum (code - zero) * x = sum (m + code) * x - (m + zero) * sum x,
// and both sums come from tensor cores, in float32; the scale is applied to their difference. If x
// is infinite, or so large that a sum is, that difference is NaN: then the block starts again with
// group_of_many.
template <typename T, typename S>
__device__ inline void group_of_few(float (&sums)[S::R][S::NT][4], const typename S::Slot& slot,
                                    int wr, int lane) {
  constexpr int R = S::R, NT = S::NT;
  const auto* scales = reinterpret_cast<const uint32_t*>(slot.affine[wr]) + lane / 4;
  const auto* zeros = reinterpret_cast<const uint16_t*>(slot.affine[wr] + 2 * R) + lane / 4;
  const uint32_t ones[4] = {Half<T>::kOnes, Half<T>::kOnes, Half<T>::kOnes, Half<T>::kOnes};
  Words x[NT][4];
  float sum_x[NT][4] = {};
#pragma unroll
  for (int i = 0; i < NT; ++i) {
    for (int j = 0; j < 4; ++j) {
      x[i][j] = slot.x[i][j][lane];
      multiply<T>(sum_x[i], ones, x[i][j].at[0], x[i][j].at[1]);
      multiply<T>(sum_x[i], ones, x[i][j].at[2], x[i][j].at[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    float part[NT][4] = {};
    const Words codes[2] = {slot.codes[wr * R + r][0][lane], slot.codes[wr * R + r][1][lane]};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t a[4];
      for (int i = 0; i < 4; ++i) a[i] = two_codes<T>(codes[j / 4].at[j % 4], i);
      for (int i = 0; i < NT; ++i)
        multiply<T>(part[i], a, x[i][j / 2].at[j % 2 * 2], x[i][j / 2].at[j % 2 * 2 + 1]);
    }
    const float2 scale = Half<T>::floats(bits<typename Half<T>::Pair>(scales[r * 8]));
    const uint32_t zero = zeros[r * 8];
    const float m_zero[2] = {magic_plus<T>(zero & 0xff), magic_plus<T>(zero >> 8)};
    for (int i = 0; i < NT; ++i) {
      for (int q = 0; q < 4; ++q)  // 0, 1: the even row of W; 2, 3: the odd one
        sums[r][i][q] += (q < 2 ? scale.x : scale.y) * (part[i][q] - m_zero[q / 2] * sum_x[i][q]);
    }
  }
}

// One group for many rows of x: there each fragment of W serves many products, so it is cheaper to
// turn it into (code - zero) * scale first, and no second set of sums has to fit into registers.
template <typename T, typename S>
__device__ inline void group_of_many(float (&sums)[S::R][S::NT][4], const typename S::Slot& slot,
                                     int wr, int lane) {
  using Pair = typename Half<T>::Pair;
  constexpr int R = S::R, NT = S::NT;
  const auto* scales = reinterpret_cast<const uint32_t*>(slot.affine[wr]) + lane / 4;
  const auto* zeros = reinterpret_cast<const uint16_t*>(slot.affine[wr] + 2 * R) + lane / 4;
  Pair scale[R][2], m_zero[R][2];  // of the even and the odd row, twice each
  for (int r = 0; r < R; ++r) {
    scale[r][0] = bits<Pair>(__byte_perm(scales[r * 8], 0, 0x1010));
    scale[r][1] = bits<Pair>(__byte_perm(scales[r * 8], 0, 0x3232));
    m_zero[r][0] = magic_pair<T>(zeros[r * 8] & 0xff);
    m_zero[r][1] = magic_pair<T>(zeros[r * 8] >> 8);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Words codes[R];
    for (int r = 0; r < R; ++r) codes[r] = slot.codes[wr * R + r][half][lane];
    for (int j = 0; j < 4; ++j) {
      uint2 x[NT];
      for (int i = 0; i < NT; ++i)
        x[i] = reinterpret_cast<const uint2*>(&slot.x[i][half * 2 + j / 2][lane])[j % 2];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        uint32_t a[4];
        for (int i = 0; i < 4; ++i) {
          const Pair code = __hsub2(bits<Pair>(two_codes<T>(codes[r].at[j], i)), m_zero[r][i % 2]);
          a[i] = bits<uint32_t>(__hmul2(code, scale[r][i % 2]));  // the difference was exact
        }
        for (int i = 0; i < NT; ++i) multiply<T>(sums[r][i], a, x[i].x, x[i].y);
      }
    }
  }
}

__device__ inline float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

template <typename T>
__device__ inline void finish(const Problem<T>& p, int m, int row, float2 sum) {
  using Pair = typename Half<T>::Pair;
  if (row >= p.n) return;
  if (p.bias) {
    const float2 bias = Half<T>::floats(*reinterpret_cast<const Pair*>(p.bias + row));
    sum = {sum.x + bias.x, sum.y + bias.y};
  }
  *reinterpret_cast<Pair*>(p.y + static_cast<int64_t>(m) * p.n + row) = Half<T>::pair(sum);
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::BLOCKS) int4_linear(const Problem<T> p) {
  using Slot = typename S::Slot;
  constexpr int R = S::R, NT = S::NT, WR = S::WR, WK = S::WK, STAGES = S::STAGES;
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32, wr = threadIdx.x / 32 % WR, wk = threadIdx.x / 32 / WR;
  const int g = lane / 4, t = lane % 4;  // as mma.sync numbers its lanes
  const int rank = blockIdx.x % S::CLUSTER, first_row = blockIdx.x / S::CLUSTER * S::kRows;
  const int m0 = blockIdx.y * S::kBatch, rows_of_x = min(p.batch - m0, S::kBatch);

  // This warp's groups: one in `slices`, so that the warps read neighbours.
  const int groups = p.k / kGroup, slice = rank * WK + wk, slices = S::CLUSTER * WK;
  const int my_groups = slice < groups ? (groups - slice - 1) / slices + 1 : 0;
  // A warp below the last row repeats the last rows; finish() drops its results.
  const int row = min(first_row + wr * R * kTile, p.n - R * kTile);
  const int64_t tile_size = static_cast<int64_t>(groups) * 64;  // in units of 16 bytes
  const Words* from_codes = p.codes + row / kTile * tile_size + slice * 64;
#if __CUDA_ARCH__ >= 900
  // While the kernel before ends: move the first weights into L2. The values are not looked at, so
  // this is right even if that kernel is still writing them.
  if (lane < R && my_groups > 0) {
    asm volatile(
        "cp.async.bulk.prefetch.L2.global [%0], 1024;" ::"l"(from_codes + lane * tile_size));
  }
  asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
  if constexpr (S::CLUSTER > 1)
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif

  const Slot* ring = reinterpret_cast<const Slot*>(memory) + wk * STAGES;
  const uint32_t ring_address = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  const bool has_scale = lane < 2 * R;  // these lanes copy scales, the next R zeros
  const int64_t affine = static_cast<int64_t>(slice) * p.n + row;
  const void* from_affine = has_scale ? static_cast<const void*>(p.scale + affine + lane * 8)
                                      : p.zero + affine + (lane - 2 * R) * 16;
  const int64_t affine_step = static_cast<int64_t>(slices) * p.n * (has_scale ? sizeof(T) : 1);
  const T* from_x = p.x + static_cast<int64_t>(m0) * p.k + slice * kGroup + t * 8;
  from_codes += lane;
  int copied = 0, filled = 0, used = 0;
  const auto copy = [&] {
    const uint32_t to = ring_address + filled * static_cast<uint32_t>(sizeof(Slot)) + lane * 16;
    for (int r = 0; r < R; ++r) {
      copy_16(to + (wr * R + r) * 1024, from_codes + r * tile_size);
      copy_16(to + (wr * R + r) * 1024 + 512, from_codes + r * tile_size + 32);
    }
    if (lane < 3 * R) copy_16(to + S::kAffine + wr * R * 48, from_affine);
#pragma unroll
    for (int i = wr; i < NT; i += WR) {
      const bool is_row = i * 8 + g < rows_of_x;
      const T* from = from_x + static_cast<int64_t>(is_row ? i * 8 + g : 0) * p.k;
      for (int j = 0; j < 4; ++j)
        copy_16(to + S::kX + (i * 4 + j) * 512, from + j * 32, is_row ? 16 : 0);
    }
    from_codes += slices * 64;
    from_affine = static_cast<const char*>(from_affine) + affine_step;
    from_x += slices * kGroup;
    filled = filled + 1 == STAGES ? 0 : filled + 1;
    ++copied;
  };
  float sums[R][NT][4] = {};
#pragma unroll 1
  for (bool is_exact = NT > 2;; is_exact = true) {
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) {
      if (copied < my_groups) copy();
      __pipeline_commit();
    }
    // As many turns for all warps: compute-sanitizer's racecheck counts barriers per warp.
    const int turns = WR > 1 ? (groups + slices - 1) / slices : my_groups;
#pragma unroll 1
    for (int i = 0; i < turns; ++i) {
      __pipeline_wait_prior(STAGES - 2);
      if constexpr (WR > 1) {
        // x was copied by the WR warps of this share of K: a barrier of theirs, not of the block's.
        asm volatile("bar.sync %0, %1;" ::"r"(wk + 1), "n"(32 * WR) : "memory");
      } else {
        __syncwarp();  // scales were copied by other lanes
      }
      if (copied < my_groups) copy();
      __pipeline_commit();
      if (i < my_groups) {
        if (NT > 2 || is_exact)
          group_of_many<T, S>(sums, ring[used], wr, lane);
        else
          group_of_few<T, S>(sums, ring[used], wr, lane);
      }
      used = used + 1 == STAGES ? 0 : used + 1;
    }
    __pipeline_wait_prior(0);
    bool is_lost = false;
    for (int i = 0; i < R * NT * 4; ++i) is_lost |= !isfinite(sums[i / 4 / NT][i / 4 % NT][i % 4]);
    // A barrier, too: all have read their slots.
    if (!__syncthreads_or(is_lost && !is_exact)) break;
    for (int i = 0; i < R * NT * 4; ++i) sums[i / 4 / NT][i / 4 % NT][i % 4] = 0;
    from_codes -= static_cast<int64_t>(copied) * slices * 64;
    from_affine = static_cast<const char*>(from_affine) - copied * affine_step;
    from_x -= static_cast<int64_t>(copied) * slices * kGroup;
    copied = filled = used = 0;
  }

  // Add the sums of the warps along K.
  float* all = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < NT; ++i) {
      float* to =
          all + (wk * S::kBatch + i * 8 + 2 * t) * S::kStride + (wr * R + r) * kTile + 2 * g;
      *reinterpret_cast<float2*>(to) = {sums[r][i][0], sums[r][i][2]};
      *reinterpret_cast<float2*>(to + S::kStride) = {sums[r][i][1], sums[r][i][3]};
    }
  }
  __syncthreads();
  constexpr int kPairs = S::kRows / 2;  // of neighbouring rows
  const auto sum_of_warps = [&](int m, int pair) {
    float2 sum = {0, 0};
    for (int i = 0; i < WK; ++i) {
      const float* part = all + (i * S::kBatch + m) * S::kStride + 2 * pair;
      sum = sum + *reinterpret_cast<const float2*>(part);
    }
    return sum;
  };
  if constexpr (S::CLUSTER == 1) {
    for (int e = threadIdx.x; e < kPairs * rows_of_x; e += S::kThreads) {
      const int m = e / kPairs, pair = e % kPairs;
      finish(p, m0 + m, first_row + 2 * pair, sum_of_warps(m, pair));
    }
  } else {
#if __CUDA_ARCH__ >= 900
    // Each block of a cluster finishes a part of the rows: the others write their sums to it.
    constexpr int kOwned = kPairs / S::CLUSTER;
    auto* parts = reinterpret_cast<float2*>(memory + (S::kShared - S::kParts) / 16);
    const auto cluster = cooperative_groups::this_cluster();
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");  // all blocks have started
    for (int e = threadIdx.x; e < kPairs * rows_of_x; e += S::kThreads) {
      const int m = e / kPairs, pair = e % kPairs;
      float2* to = parts + (rank * S::kBatch + m) * kOwned + pair % kOwned;
      *cluster.map_shared_rank(to, pair / kOwned) = sum_of_warps(m, pair);
    }
    cluster.sync();
    for (int e = threadIdx.x; e < kOwned * rows_of_x; e += S::kThreads) {
      const int m = e / kOwned, pair = e % kOwned;
      float2 sum = {0, 0};
      for (int i = 0; i < S::CLUSTER; ++i) sum = sum + parts[(i * S::kBatch + m) * kOwned + pair];
      finish(p, m0 + m, first_row + 2 * (rank * kOwned + pair), sum);
    }
#endif
  }
}

}  // namespace four_bit
