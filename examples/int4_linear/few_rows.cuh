// y = x * W^T for few rows of x, with mma.sync, on any GPU from sm_80 on.
//
// A warp computes R tiles of 16 rows of W for NT * 8 rows of x, over its share of K. Codes, scales,
// zeros and x are copied by cp.async into a ring of STAGES slots, each for one group of 128
// columns. A block has WR warps along W's rows, which share x, and WK warps along K, whose sums are
// added at the end; so are those of the blocks of a cluster. Every order is fixed: no atomics.
#pragma once
#include "codes.cuh"

#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <stddef.h>

namespace four_bit {

template <int R_, int NT_, int WR_, int WK_, int STAGES_, int CLUSTER_, int BLOCKS_>
struct Shape {
  static constexpr int R = R_, NT = NT_, WR = WR_, WK = WK_, STAGES = STAGES_, CLUSTER = CLUSTER_;
  static constexpr int BLOCKS = BLOCKS_;  // that should fit on a multiprocessor
  static constexpr int kRows = WR * R * kTile, kBatch = NT * 8, kThreads = 32 * WR * WK;
  static constexpr int kStride = kRows + 4;  // floats from sum to sum, so that banks differ
  struct Slot {
    Words codes[WR][2][R][32];  // a lane reads what it has copied itself
    Words x[NT][4][32];
    uint4 affine[WR][3 * R];  // scales, then zeros
  };
  static constexpr uint32_t kX = offsetof(Slot, x), kAffine = offsetof(Slot, affine);
  static constexpr int kRing = WK * STAGES * static_cast<int>(sizeof(Slot));
  static constexpr int kSums = WK * kBatch * kStride * 4;
  // Where there is room for both, a block computes several tiles, and copies ahead from tile to
  // tile.
  static constexpr bool kLoops = BLOCKS == 1 && CLUSTER == 1 && kRing + kSums <= 227 * 1024;
  static constexpr int kOwn = kLoops ? kRing + kSums : kRing > kSums ? kRing : kSums;
  static constexpr int kShared = kOwn + (CLUSTER > 1 ? kRows * kBatch * 4 : 0);  // sums of others
};

// Copy 16 bytes to shared memory in the background; those past `bytes` become zeros.
__device__ inline void copy_16(uint32_t to, const void* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// Where columns 8 t to 8 t + 7 of row g of an 8 x 32 tile of x lie, so that neither the copies nor
// ldmatrix meet a bank twice.
__device__ inline int place_of_x(int g, int t) { return g * 4 + (t ^ g / 2); }

// The fragments of two steps.
__device__ inline Words load_x(const Words (&tile)[32], int lane) {
  const Words* from = &tile[place_of_x(lane % 8, lane / 8)];
  Words x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.at[0]), "=r"(x.at[1]), "=r"(x.at[2]), "=r"(x.at[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))));
  return x;
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
      x[i][j] = load_x(slot.x[i][j], lane);
      multiply<T>(sum_x[i], ones, x[i][j].at[0], x[i][j].at[1]);
      multiply<T>(sum_x[i], ones, x[i][j].at[2], x[i][j].at[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    float part[NT][4] = {};
    const Words codes[2] = {slot.codes[wr][0][r][lane], slot.codes[wr][1][r][lane]};
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
  for (int pair = 0; pair < 4; ++pair) {  // of steps
    Words x[NT];
    for (int i = 0; i < NT; ++i) x[i] = load_x(slot.x[i][pair], lane);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const uint2 codes =
          reinterpret_cast<const uint2*>(&slot.codes[wr][pair / 2][r][lane])[pair % 2];
      for (int j = 0; j < 2; ++j) {
        uint32_t a[4];
        for (int i = 0; i < 4; ++i) {
          const Pair code =
              __hsub2(bits<Pair>(two_codes<T>(j == 0 ? codes.x : codes.y, i)), m_zero[r][i % 2]);
          a[i] = bits<uint32_t>(__hmul2(code, scale[r][i % 2]));  // the difference was exact
        }
        for (int i = 0; i < NT; ++i) multiply<T>(sums[r][i], a, x[i].at[j * 2], x[i].at[j * 2 + 1]);
      }
    }
  }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::BLOCKS) few_rows(const Problem<T> p) {
  using Slot = typename S::Slot;
  constexpr int R = S::R, NT = S::NT, WR = S::WR, WK = S::WK, STAGES = S::STAGES;
  constexpr int CLUSTER = S::CLUSTER;
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32, wr = threadIdx.x / 32 % WR, wk = threadIdx.x / 32 / WR;
  const int g = lane / 4, t = lane % 4;  // as mma.sync numbers its lanes
  const int rank = blockIdx.x % CLUSTER, tiles = up(p.n, S::kRows);
  const int m0 = blockIdx.y * S::kBatch, rows_of_x = min(p.batch - m0, S::kBatch);

  // The block's part of K lies in one piece; its warps take the groups in turn.
  const int first_group = p.groups * rank / CLUSTER;
  const int count = p.groups * (rank + 1) / CLUSTER - first_group;
  const int my_groups = (count + WK - 1 - wk) / WK, my_first = first_group + wk;

  const Slot* ring = reinterpret_cast<const Slot*>(memory) + wk * STAGES;
  const uint32_t ring_address = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  const bool has_scale = lane < 2 * R;  // these lanes copy scales, the next R zeros
  const int64_t affine_step = static_cast<int64_t>(WK) * p.n * (has_scale ? sizeof(T) : 1);
  const int place = place_of_x(g, t) * 16;
  // The next copy: of group `group` of tile `ahead`.
  int ahead = blockIdx.x / CLUSTER, group = my_first, left = 0, filled = 0;
  const Words* from_codes = nullptr;
  const void* from_affine = nullptr;
  const T* from_x = nullptr;
  const auto point = [&] {
    // A warp below the last row repeats the last rows; finish() drops its results.
    const int row = min(ahead * S::kRows + wr * R * kTile, p.n - R * kTile);
    const int64_t affine = static_cast<int64_t>(my_first) * p.n + row;
    from_codes = p.codes + (static_cast<int64_t>(row / 64) * (p.k / 64) + my_first * 2) * 128 +
                 row % 64 / kTile * 32 + lane;
    from_affine = has_scale ? static_cast<const void*>(p.scale + affine + lane * 8)
                            : p.zero + affine + (lane - 2 * R) * 16;
    from_x = p.x + static_cast<int64_t>(m0) * p.k + my_first * kGroup + t * 8;
    group = my_first;
    left = my_groups;
    ahead += gridDim.x / CLUSTER;
  };
  const auto copy = [&] {
    if (S::kLoops && left == 0 && ahead < tiles) point();
    if (left > 0) {
      const uint32_t to = ring_address + filled * static_cast<uint32_t>(sizeof(Slot));
      // The last group may be half one: then zeros take the place of its second half.
      const bool is_whole = group * kGroup + 64 < p.k;
      const int second = is_whole ? 16 : 0, other = is_whole ? 128 : 0;
      for (int r = 0; r < R; ++r) {
        copy_16(to + (wr * 2 * R + r) * 512 + lane * 16, from_codes + r * 32);
        copy_16(to + (wr * 2 * R + R + r) * 512 + lane * 16, from_codes + r * 32 + other, second);
      }
      if (lane < 3 * R) copy_16(to + S::kAffine + wr * R * 48 + lane * 16, from_affine);
#pragma unroll
      for (int i = wr; i < NT; i += WR) {
        const bool is_row = i * 8 + g < rows_of_x;
        const T* from = from_x + static_cast<int64_t>(is_row ? i * 8 + g : 0) * p.k;
        for (int j = 0; j < 4; ++j) {
          const bool is_there = j < 2 || is_whole;
          copy_16(to + S::kX + (i * 4 + j) * 512 + place, from + (is_there ? j * 32 : 0),
                  is_row && is_there ? 16 : 0);
        }
      }
      from_codes += WK * 256;
      from_affine = static_cast<const char*>(from_affine) + affine_step;
      from_x += WK * kGroup;
      group += WK;
      --left;
    }
    filled = filled + 1 == STAGES ? 0 : filled + 1;
    __pipeline_commit();
  };

  const int first_tile = ahead;
  point();
#if __CUDA_ARCH__ >= 900
  // While the kernel before ends: move the first weights into L2. The values are not looked at, so
  // this is right even if that kernel is still writing them.
  if (left > 0) {
    if (lane == 0 || (lane == 1 && group * kGroup + 64 < p.k)) {
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from_codes + lane * 127),
                   "n"(R * 512));
    }
    if (lane < 3 * R) asm volatile("prefetch.global.L2 [%0];" ::"l"(from_affine));
  }
  asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
  if constexpr (CLUSTER > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif

  int used = 0;
  float* all = reinterpret_cast<float*>(memory) + (S::kLoops ? S::kRing / 4 : 0);
#pragma unroll 1
  for (int tile = first_tile, is_first = 1; tile < tiles;
       tile += gridDim.x / CLUSTER, is_first = 0) {
    float sums[R][NT][4] = {};
#pragma unroll 1
    for (bool is_exact = NT > 2;; is_exact = true) {
      // As many turns for all warps: compute-sanitizer's racecheck counts barriers per warp.
      const int turns = WR > 1 ? (count + WK - 1) / WK : my_groups;
#pragma unroll 1
      for (int i = is_first ? 1 - STAGES : 0; i < turns; ++i) {
        if (i >= 0) {
          __pipeline_wait_prior(STAGES - 2);
          if constexpr (WR > 1) {
            // x was copied by the WR warps of this share of K: a barrier of theirs.
            asm volatile("bar.sync %0, %1;" ::"r"(wk + 1), "n"(32 * WR) : "memory");
          } else {
            __syncwarp();  // x and scales were copied by other lanes
          }
        }
        if (i < my_groups) copy();
        if (i < 0 || i >= my_groups) continue;
        if (NT > 2 || is_exact)
          group_of_many<T, S>(sums, ring[used], wr, lane);
        else
          group_of_few<T, S>(sums, ring[used], wr, lane);
        used = used + 1 == STAGES ? 0 : used + 1;
      }
      bool is_lost = false;
      for (int i = 0; i < R * NT * 4; ++i)
        is_lost |= !isfinite(sums[i / 4 / NT][i / 4 % NT][i % 4]);
      if (!S::kLoops) __pipeline_wait_prior(0);
      // A barrier, too: all have read their slots, and what they finished before.
      if (!__syncthreads_or(is_lost && !is_exact)) break;
      for (int i = 0; i < R * NT * 4; ++i) sums[i / 4 / NT][i / 4 % NT][i % 4] = 0;
      __pipeline_wait_prior(0);
      __syncthreads();
      ahead = tile;
      point();
      filled = used = 0;
      is_first = 1;
    }

    // Add the sums of the warps along K.
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
    if constexpr (CLUSTER == 1) {
      for (int e = threadIdx.x; e < kPairs * rows_of_x; e += S::kThreads) {
        const int m = e / kPairs, pair = e % kPairs;
        finish(p, m0 + m, tile * S::kRows + 2 * pair, sum_of_warps(m, pair));
      }
    } else {
#if __CUDA_ARCH__ >= 900
      // Each block of a cluster finishes a part of the rows: the others write their sums to it.
      constexpr int kOwned = kPairs / CLUSTER;
      auto* parts = reinterpret_cast<float2*>(memory + S::kOwn / 16);
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
        for (int i = 0; i < CLUSTER; ++i) sum = sum + parts[(i * S::kBatch + m) * kOwned + pair];
        finish(p, m0 + m, tile * S::kRows + 2 * (rank * kOwned + pair), sum);
      }
#endif
    }
    if (!S::kLoops) break;
  }
}

}  // namespace four_bit
