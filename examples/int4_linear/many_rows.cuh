// y^T = W x^T for more than a few rows of x, with wgmma: for sm_90a, which are H100, H200 and H20.
//
// A warpgroup of four warps computes 64 rows of W for BATCH rows of x. A tensor core takes W as the
// left factor from registers, where codes become numbers anyway, and x as the right one from shared
// memory. One more thread, the producer, does nothing but order copies: TMA brings a box of x, in
// the order in which wgmma wants it, and bulk copies bring codes, scales and zeros. A ring of
// STAGES slots, each for one group of 128 columns, lets it run ahead. If there are fewer blocks
// than multiprocessors, the blocks of a cluster share K, and add their sums in a fixed order.
#pragma once
#include "codes.cuh"

#include <cooperative_groups.h>
#include <cuda.h>

namespace four_bit {

template <int BATCH_, int TEAMS_>
struct Tile {
  static constexpr int BATCH = BATCH_, TEAMS = TEAMS_;
  static constexpr int kRows = TEAMS * 64, kThreads = (TEAMS + 1) * 128;
  static constexpr int kX = BATCH * kGroup * 2, kCodes = kRows * kGroup / 2, kScales = kRows * 2;
  static constexpr int kSlot = kX + kCodes + kScales + kRows;
  static constexpr int kFitting = 224 * 1024 / kSlot;
  static constexpr int STAGES = kFitting < 8 ? kFitting : 8;
  static constexpr int kStride = kRows + 4;  // floats from sum to sum, so that banks differ
  static constexpr int kRing = STAGES * kSlot, kSums = BATCH * kStride * 4;
  static constexpr int kShared = (kRing > kSums ? kRing : kSums) + 1024;  // to begin at 1024
  // Registers of a thread: ptxas deals out as many as all can have; then the producer gives most
  // of its own to the others.
  static constexpr int kProducer = TEAMS == 2 ? 24 : 40;
  static constexpr int kOthers = TEAMS == 3 ? 152 : 240;
};

__device__ inline uint32_t address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// A barrier in shared memory: its phase ends when `count` arrivals and all announced bytes are in.
__device__ inline void init_barrier(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count));
}

__device__ inline void arrive_and_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

// Phases alternate between 0 and 1. A `trap` in here, as a guard, would make ptxas serialize wgmma.
__device__ inline void wait(uint64_t* barrier, int phase) {
  uint32_t is_over;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(is_over)
        : "r"(address(barrier)), "r"(phase)
        : "memory");
  } while (!is_over);
}

// Copy 64 columns of x.
__device__ inline void copy_box(void* to, const CUtensorMap& x, int column, int m,
                                uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(address(to)),
      "l"(&x), "r"(column), "r"(m), "r"(address(barrier))
      : "memory");
}

// compute-sanitizer's racecheck (CUDA 13.0) reports reads of what this has copied: it does not see
// that mbarriers order the two, as it does for the copies of a tensor map.
__device__ inline void copy_bulk(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(address(to)),
      "l"(from), "r"(bytes), "r"(address(barrier))
      : "memory");
}

// sums += a * b, for 64 rows of W, 16 columns, and N rows of x. PTX wants each register by name.
#define TEN(tens)                                                                         \
  "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, %" #tens "5, %" #tens \
  "6, "                                                                                   \
  "%" #tens "7, %" #tens "8, %" #tens "9, "
#define EIGHT(c, i)                                                                           \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define THIRTY_TWO(c, i) EIGHT(c, i), EIGHT(c, i + 8), EIGHT(c, i + 16), EIGHT(c, i + 24)
#define WGMMA(type, n, registers, a0, a1, a2, a3, b, one, ...)                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #one                                      \
               ", 0;\n"                                                                       \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" registers \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, 0;\n}"         \
               : __VA_ARGS__                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_), "r"(1))
#define WGMMA_OF_TYPE(...)                 \
  if constexpr (std::is_same_v<T, __half>) \
    WGMMA("f16", __VA_ARGS__);             \
  else                                     \
    WGMMA("bf16", __VA_ARGS__)

template <typename T>
__device__ inline void wgmma(float (&c)[16], const uint32_t (&a)[4], uint64_t b_) {
  WGMMA_OF_TYPE(32, TEN() "%10, %11, %12, %13, %14, %15", 16, 17, 18, 19, 20, 21, EIGHT(c, 0),
                EIGHT(c, 8));
}
template <typename T>
__device__ inline void wgmma(float (&c)[32], const uint32_t (&a)[4], uint64_t b_) {
  WGMMA_OF_TYPE(64, TEN() TEN(1) TEN(2) "%30, %31", 32, 33, 34, 35, 36, 37, THIRTY_TWO(c, 0));
}
template <typename T>
__device__ inline void wgmma(float (&c)[64], const uint32_t (&a)[4], uint64_t b_) {
  WGMMA_OF_TYPE(128, TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63", 64, 65, 66, 67,
                68, 69, THIRTY_TWO(c, 0), THIRTY_TWO(c, 32));
}
template <typename T>
__device__ inline void wgmma(float (&c)[96], const uint32_t (&a)[4], uint64_t b_) {
  WGMMA_OF_TYPE(192,
                TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7)
                    TEN(8) "%90, %91, %92, %93, %94, %95",
                96, 97, 98, 99, 100, 101, THIRTY_TWO(c, 0), THIRTY_TWO(c, 32), THIRTY_TWO(c, 64));
}
template <typename T>
__device__ inline void wgmma(float (&c)[128], const uint32_t (&a)[4], uint64_t b_) {
  WGMMA_OF_TYPE(256,
                TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10)
                    TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127",
                128, 129, 130, 131, 132, 133, THIRTY_TWO(c, 0), THIRTY_TWO(c, 32),
                THIRTY_TWO(c, 64), THIRTY_TWO(c, 96));
}

__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// x: boxes of 64 columns and BATCH rows, in shared memory with the 128-byte swizzle.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    many_rows(const __grid_constant__ CUtensorMap x, const Problem<T> p, int splits) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int BATCH = S::BATCH, STAGES = S::STAGES;
  extern __shared__ uint4 memory[];
  __shared__ uint64_t is_full[STAGES], is_empty[STAGES];
  char* ring = reinterpret_cast<char*>(memory) + (-address(memory) & 1023);
  char *all_codes = ring + STAGES * S::kX, *all_scales = all_codes + STAGES * S::kCodes;
  char* all_zeros = all_scales + STAGES * S::kScales;

  const int part = blockIdx.x % splits, first_row = blockIdx.x / splits * S::kRows;
  const int m0 = blockIdx.y * BATCH;
  const int first_group = static_cast<int>(static_cast<int64_t>(p.groups) * part / splits);
  const int my_groups =
      static_cast<int>(static_cast<int64_t>(p.groups) * (part + 1) / splits) - first_group;
  const int rows = min(S::kRows, p.n - first_row);      // the last block may have fewer
  const int64_t chunk = static_cast<int64_t>(p.n) * 2;  // Words of 64 columns
  const Words* from_codes = p.codes + first_group * 2 * chunk + first_row * 2;

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&is_full[i], 1);
      init_barrier(&is_empty[i], S::TEAMS * 4);  // a lane of each warp that reads it
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    // As in few_rows.cuh: the first weights go to L2 while the kernel before ends.
    for (int i = 0; i < min(my_groups * 2, 8); ++i) {
      if ((first_group * 2 + i) * 64 >= p.k) break;
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from_codes + i * chunk),
                   "r"(rows * 32));
    }
  }
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");

  if (threadIdx.x < 128) {  // the producer and three idle warps: setmaxnreg counts warpgroups
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kProducer));
    if (threadIdx.x == 0) {
      for (int i = 0; i < my_groups; ++i) {
        const int slot = i % STAGES, group = first_group + i;
        if (i >= STAGES) wait(&is_empty[slot], (i / STAGES - 1) % 2);
        const bool is_whole = group * kGroup + 64 < p.k;  // or TMA fills the second half with zeros
        arrive_and_expect(&is_full[slot], S::kX + rows * (is_whole ? 67 : 35));
        for (int half = 0; half < 2; ++half) {
          copy_box(ring + slot * S::kX + half * BATCH * 128, x, group * kGroup + half * 64, m0,
                   &is_full[slot]);
          if (half == 0 || is_whole) {
            copy_bulk(all_codes + slot * S::kCodes + half * S::kRows * 32,
                      from_codes + (i * 2 + half) * chunk, rows * 32, &is_full[slot]);
          }
        }
        const int64_t affine = static_cast<int64_t>(group) * p.n + first_row;
        copy_bulk(all_scales + slot * S::kScales, p.scale + affine, rows * 2, &is_full[slot]);
        copy_bulk(all_zeros + slot * S::kRows, p.zero + affine, rows, &is_full[slot]);
      }
    }
    __syncwarp();
    if (splits > 1) {
      cluster_barrier();
      cluster_barrier();
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kOthers));
    using Pair = typename Half<T>::Pair;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
    const int g = lane / 4, t = lane % 4, my_row = warp * kTile + 2 * g;
    float sums[BATCH / 2] = {};
    // Fragments of W: while a tensor core reads one half of a group, the other is made.
    uint32_t a[2][4][4];
    for (int i = 0; i < my_groups; ++i) {
      const int slot = i % STAGES;
      wait(&is_full[slot], i / STAGES % 2);
      const uint32_t scales =
          *reinterpret_cast<const uint32_t*>(all_scales + slot * S::kScales + my_row * 2);
      const uint32_t zeros =
          *reinterpret_cast<const uint16_t*>(all_zeros + slot * S::kRows + my_row);
      const Pair scale[2] = {bits<Pair>(__byte_perm(scales, 0, 0x1010)),
                             bits<Pair>(__byte_perm(scales, 0, 0x3232))};
      const Pair m_zero[2] = {magic_pair<T>(zeros & 0xff), magic_pair<T>(zeros >> 8)};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const char* from = all_codes + slot * S::kCodes + half * S::kRows * 32;
        const Words codes = reinterpret_cast<const Words*>(from)[warp * 32 + lane];
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const Pair code =
              __hsub2(bits<Pair>(two_codes<T>(codes.at[j / 4], j % 4)), m_zero[j % 2]);
          a[half][j / 4][j % 4] = bits<uint32_t>(__hmul2(code, scale[j % 2]));
        }
        // Address / 16; 1024 bytes from 8 rows to the next; the 128-byte swizzle.
        const uint32_t box = address(ring + slot * S::kX + half * BATCH * 128);
        const uint64_t b = (box >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int j = 0; j < 4; ++j) wgmma<T>(sums, a[half][j], b + j * 2);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::
                         : "memory");
        // Only the last products may still be under way, so the slot before is free.
        if (half == 0 && i > 0) {
          __syncwarp();
          if (lane == 0) arrive(&is_empty[(i - 1) % STAGES]);
        }
      }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");

    if (splits == 1) {
      const int row = first_row + my_row;
      const float2 bias = load_bias(p, row);
#pragma unroll
      for (int i = 0; i < BATCH / 8; ++i) {
        const int m = m0 + i * 8 + 2 * t;
        if (m < p.batch) finish(p, m, row, {sums[i * 4], sums[i * 4 + 2]}, bias);
        if (m + 1 < p.batch) finish(p, m + 1, row, {sums[i * 4 + 1], sums[i * 4 + 3]}, bias);
      }
    } else {
      float* all = reinterpret_cast<float*>(ring);
      asm volatile("bar.sync 1, %0;" ::"n"(S::kThreads - 128)
                   : "memory");  // all have read the ring
#pragma unroll
      for (int i = 0; i < BATCH / 8; ++i) {
        float* to = all + (i * 8 + 2 * t) * S::kStride + my_row;
        *reinterpret_cast<float2*>(to) = {sums[i * 4], sums[i * 4 + 2]};
        *reinterpret_cast<float2*>(to + S::kStride) = {sums[i * 4 + 1], sums[i * 4 + 3]};
      }
      cluster_barrier();
      // Each block finishes some rows of x.
      const auto blocks = cooperative_groups::this_cluster();
      const int count = min(BATCH, p.batch - m0), first = count * part / splits;
      const int end = count * (part + 1) / splits;
      constexpr int kFours = S::kRows / 4;
      for (int e = threadIdx.x - 128; e < (end - first) * kFours; e += S::kThreads - 128) {
        const int m = first + e / kFours, row = e % kFours * 4;
        float4 sum = {0, 0, 0, 0};
#pragma unroll 4
        for (int i = 0; i < splits; ++i) {
          const float4 more = *reinterpret_cast<const float4*>(
              blocks.map_shared_rank(all + m * S::kStride + row, i));
          sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
        }
        finish(p, m0 + m, first_row + row, {sum.x, sum.y}, load_bias(p, first_row + row));
        finish(p, m0 + m, first_row + row + 2, {sum.z, sum.w}, load_bias(p, first_row + row + 2));
      }
      cluster_barrier();  // others may still read the sums of this block
    }
  }
#endif
}

}  // namespace four_bit
