// y^T = W x^T for more than a few rows of x, with wgmma: for sm_90a, which are H100, H200 and H20.
//
// A warpgroup of four warps computes 64 rows of W for BATCH rows of x. A tensor core takes W as the
// left factor from registers, where codes become numbers anyway, and x as the right one from shared
// memory. One more thread, the producer, does nothing but order copies by TMA, into a ring of
// STAGES slots, each for 64 or 128 columns. The blocks of a cluster share K if there are fewer
// tiles than multiprocessors, and add their sums in a fixed order.
#pragma once
#include "codes.cuh"

#include <cooperative_groups.h>

namespace four_bit {

template <int BATCH_, int TEAMS_, int CHUNKS_>
struct Tile {
  static constexpr int BATCH = BATCH_, TEAMS = TEAMS_, CHUNKS = CHUNKS_;
  static constexpr int kRows = TEAMS * 64, kThreads = (TEAMS + 1) * 128;
  static constexpr int kX = CHUNKS * BATCH * 128, kCodes = CHUNKS * kRows * 32,
                       kZeros = (kRows + 127) / 128 * 128;
  static constexpr int kSlot = kX + kCodes + kRows * 2 + kZeros;
  static constexpr int kBytes = kX + kCodes + kRows * 3;  // that come in
  static constexpr int kFitting = 224 * 1024 / kSlot;
  static constexpr int STAGES = kFitting < 12 ? kFitting : 12;
  static constexpr int kStride = kRows + 4;  // floats from one row of x to the next: banks differ
  static constexpr int kRing = STAGES * kSlot, kSums = BATCH * kStride * 4;
  static constexpr int kShared = (kRing > kSums ? kRing : kSums) + 1024;  // to begin at 1024
  // Registers of a thread: ptxas deals out as many as all can have; then the producer gives most
  // of its own to the others.
  static constexpr int kProducer = 24, kOthers = TEAMS <= 2 ? 240 : TEAMS == 3 ? 160 : 112;
};

struct Maps {
  CUtensorMap x, codes, scale, zero;
};

// Codes of 64 columns become the fragments of four products.
template <typename T>
__device__ inline void make_fragments(uint32_t (&a)[4][4], const Words& codes,
                                      const typename Half<T>::Pair (&scale)[2],
                                      const typename Half<T>::Pair (&m_zero)[2]) {
  using Pair = typename Half<T>::Pair;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const Pair code = __hsub2(bits<Pair>(two_codes<T>(codes.at[j / 4], j % 4)), m_zero[j % 2]);
    a[j / 4][j % 4] = bits<uint32_t>(__hmul2(code, scale[j % 2]));
  }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    many_rows(const __grid_constant__ Maps maps, const Int4Call p, int splits, int first_tile,
              int end_tile) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int BATCH = S::BATCH, STAGES = S::STAGES, CHUNKS = S::CHUNKS;
  extern __shared__ uint4 memory[];
  __shared__ uint64_t is_full[STAGES], is_empty[STAGES];
  char* ring = reinterpret_cast<char*>(memory) + (-address(memory) & 1023);
  char *all_codes = ring + STAGES * S::kX, *all_scales = all_codes + STAGES * S::kCodes;
  char* all_zeros = all_scales + STAGES * S::kRows * 2;

  // Tiles of W's rows, then of x's. Blocks loop over them; those of a cluster have one.
  const int tiles_of_w = divide_up(p.n, S::kRows), tile_step = gridDim.x / splits;
  const int my_tile = first_tile + blockIdx.x / splits, part = blockIdx.x % splits;
  const int first_group = groups_of(p) * part / splits;
  const int my_groups = groups_of(p) * (part + 1) / splits - first_group;

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&is_full[i], 1);
      init_barrier(&is_empty[i], S::TEAMS * 4);  // a lane of each warp that reads it
    }
    publish_barriers();
  }
  // As in few_rows.cuh: the first weights go to L2 while the kernel before ends.
  const int ahead_row = my_tile % tiles_of_w * S::kRows, i = threadIdx.x;
  const int rows = min(S::kRows, p.n - ahead_row), groups = min(my_groups, 8);
  if (i < rows / 64 && groups > 0) {
    const int64_t block = static_cast<int64_t>(ahead_row / 64 + i) * (p.k / 64) + first_group * 2;
    const int chunks = min(groups * 2, p.k / 64 - first_group * 2);
    prefetch_bulk(static_cast<const Words*>(p.packed) + block * 128, chunks * 2048);
  } else if (i >= 32 && i < 32 + groups) {
    const int64_t affine = static_cast<int64_t>(first_group + i - 32) * p.n + ahead_row;
    const T* scales = static_cast<const T*>(p.scale) + affine;
    const char* zeros = static_cast<const char*>(p.zero) + affine;
    prefetch_bulk(scales, rows * 2);
    prefetch_bulk(zeros, rows);
  } else if (i >= 64 && i < 68) {
    prefetch_map(&maps.x + i - 64);
  }
  __syncthreads();
  start_next_kernel();
  wait_for_kernel_before();

  if (threadIdx.x < 128) {  // the producer and three idle warps: setmaxnreg counts warpgroups
    give_registers<S::kProducer>();
    if (threadIdx.x > 0) return;
    int slot = 0, phase = 1;  // the wait for a phase before the first does not wait
    for (int tile = my_tile; tile < end_tile; tile += tile_step) {
      const int first_row = tile % tiles_of_w * S::kRows, m0 = tile / tiles_of_w * BATCH;
      for (int chunk = first_group * 2; chunk < (first_group + my_groups) * 2; chunk += CHUNKS) {
        wait(&is_empty[slot], phase);
        expect_bytes(&is_full[slot], S::kBytes);
        load_tile(all_codes + slot * S::kCodes, maps.codes, &is_full[slot],
                  {0, chunk * 2, first_row / 64});
        load_tile(all_scales + slot * S::kRows * 2, maps.scale, &is_full[slot],
                  {first_row, chunk / 2});
        load_tile(all_zeros + slot * S::kZeros, maps.zero, &is_full[slot], {first_row, chunk / 2});
        for (int i = 0; i < CHUNKS; ++i) {
          load_tile(ring + slot * S::kX + i * BATCH * 128, maps.x, &is_full[slot],
                    {(chunk + i) * 64, m0});
        }
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        phase ^= slot == 0;
      }
    }
    return;
  }

  take_registers<S::kOthers>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
  const int g = lane / 4, t = lane % 4, my_row = warp * kTile + 2 * g;
  using Pair = typename Half<T>::Pair;
  int slot = 0, phase = 0;
  for (int tile = my_tile; tile < end_tile; tile += tile_step) {
    const int first_row = tile % tiles_of_w * S::kRows, m0 = tile / tiles_of_w * BATCH;
    float sums[BATCH / 2] = {};
    // Fragments of W: while a tensor core reads those of 64 columns, the next ones are made.
    uint32_t a[2][4][4];
    Pair scale[2], m_zero[2];
    int last = -1;
    for (int i = 0; i < my_groups; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (CHUNKS == 1 || half == 0) {
          wait(&is_full[slot], phase);
          const uint32_t scales =
              *reinterpret_cast<const uint32_t*>(all_scales + (slot * S::kRows + my_row) * 2);
          const uint32_t zeros =
              *reinterpret_cast<const uint16_t*>(all_zeros + slot * S::kZeros + my_row);
          for (int odd = 0; odd < 2; ++odd) {
            scale[odd] = bits<Pair>(__byte_perm(scales, 0, odd ? 0x3232 : 0x1010));
            m_zero[odd] = magic_pair<T>(zeros >> 8 * odd & 0xff);
          }
        }
        const int chunk = CHUNKS == 1 ? 0 : half;
        const char* codes = all_codes + slot * S::kCodes + (warp / 4 * CHUNKS + chunk) * 2048;
        make_fragments<T>(a[half], reinterpret_cast<const Words*>(codes)[warp % 4 * 32 + lane],
                          scale, m_zero);
        const uint64_t b = describe(address(ring + slot * S::kX + chunk * BATCH * 128));
        begin_products();
#pragma unroll
        for (int j = 0; j < 4; ++j) wgmma<T>(sums, a[half][j], b + j * 2, true);
        commit_products();
        wait_products<1>();
        // Only the last products may still be in flight, so the slot before is free.
        if (CHUNKS == 1 || half == 0) {
          __syncwarp();
          if (lane == 0 && last >= 0) arrive(&is_empty[last]);
        }
        if (CHUNKS == 1 || half == 1) {
          last = slot;
          slot = slot + 1 == STAGES ? 0 : slot + 1;
          phase ^= slot == 0;
        }
      }
    }
    wait_products<0>();
    __syncwarp();
    if (lane == 0 && last >= 0) arrive(&is_empty[last]);

    const int count = min(BATCH, p.batch - m0), row = first_row + my_row;
    if (splits == 1) {
      if (row >= p.n) continue;
      const auto* from = static_cast<const Pair*>(p.bias ? p.bias : p.scale) + row / 2;
      const float2 bias = p.bias ? Half<T>::floats(*from) : float2{0, 0};
      const int width = p.is_gated ? p.n / 2 : p.n;
      T* y = static_cast<T*>(p.y) + static_cast<int64_t>(m0 + 2 * t) * width +
             (p.is_gated ? row / 2 : row);
#pragma unroll
      for (int i = 0; i < BATCH / 8; ++i, y += static_cast<int64_t>(width) * 8) {
        const int left = count - 2 * t - i * 8;  // rows of x
        if (left > 0) store(y, bias + float2{sums[i * 4], sums[i * 4 + 2]}, p.is_gated);
        if (left > 1) store(y + width, bias + float2{sums[i * 4 + 1], sums[i * 4 + 3]}, p.is_gated);
      }
      continue;
    }
    float* all = reinterpret_cast<float*>(ring);
    sync_some(1, S::kThreads - 128);  // all have read the ring
#pragma unroll
    for (int i = 0; i < BATCH / 8; ++i) {
      float* to = all + (i * 8 + 2 * t) * S::kStride + my_row;
      *reinterpret_cast<float2*>(to) = {sums[i * 4], sums[i * 4 + 2]};
      *reinterpret_cast<float2*>(to + S::kStride) = {sums[i * 4 + 1], sums[i * 4 + 3]};
    }
    const auto blocks = cooperative_groups::this_cluster();
    blocks.sync();
    // Each block finishes some rows of x.
    const int first = count * part / splits, end = count * (part + 1) / splits;
    constexpr int kFours = S::kRows / 4;
    for (int e = threadIdx.x - 128; e < (end - first) * kFours; e += S::kThreads - 128) {
      const int m = first + e / kFours, four = e % kFours * 4;
      float2 low = {0, 0}, high = {0, 0};
#pragma unroll 4
      for (int i = 0; i < splits; ++i) {
        const float4 more = *reinterpret_cast<const float4*>(
            blocks.map_shared_rank(all + m * S::kStride + four, i));
        low = low + float2{more.x, more.y};
        high = high + float2{more.z, more.w};
      }
      finish<T>(p, m0 + m, first_row + four, low);
      finish<T>(p, m0 + m, first_row + four + 2, high);
    }
    // Others may still read the sums of this block. They have used what they read when they arrive.
    arrive_at_cluster();
    wait_for_cluster();
  }
#endif
}

}  // namespace four_bit
