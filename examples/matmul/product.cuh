// The top of the ladder: persistent blocks in clusters of two, a producer thread and two warpgroups
// of consumers, results by TMA. Rung 7 stores the product; gated_linear's epilogue halves it first.
#pragma once
#include "common/barriers.cuh"
#include "common/copies.cuh"
#include "common/launch.cuh"
#include "common/mma.cuh"
#include "common/tensor_map.cuh"
#include "common/wgmma.cuh"
#include "plan.h"

using bf16 = __nv_bfloat16;

// C = A B^T, row-major: A is m x k, B is n x k. gated_linear's C has n / 2 columns.
struct Problem {
  bf16* c;
  const bf16 *a, *b;
  int m, n, k;
};

// kTileN rows of B per tile. kCluster blocks that lie below each other share the tiles of B.
template <int kTileN>
struct SharedStorage {
  static constexpr int kStages = 4 * (kTileM + 256) / (kTileM + kTileN);
  bf16 a[kStages][kTileM * kTileK];
  bf16 b[kStages][kTileN * kTileK];
  bf16 c[2][2][64 * 64];  // two buffers for each warpgroup of consumers
  uint64_t full[kStages], empty[kStages];
};

// Row and column of tile i, in the order that suits L2: down a band of 2048 rows, then one column
// further. So blocks that run together read about 2048 rows of A and 2048 of B.
template <int kTileN, int kCluster>
__device__ int2 find_tile(int i, int rows, int columns) {
  const int high = (rows + kTileM * kCluster - 1) / (kTileM * kCluster);
  const int wide = (columns + kTileN - 1) / kTileN;
  constexpr int kBand = 16 / kCluster;
  const int band = i / (kBand * wide), first = band * kBand;
  const int here = min(kBand, high - first), place = i - first * wide;
  return make_int2((first + place % here) * kTileM * kCluster, place / here * kTileN);
}

// A stage, and the parity of its phase. Producer and consumers walk over the stages alike.
template <int kStages>
struct PipelineState {
  int stage = 0, phase = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// x / (1 + exp(-x)). Two instructions of the special function unit; denormals become zero.
__device__ inline float silu(float x) { return x * reciprocal(1 + exp_2(x * -1.44269504f)); }

__device__ inline uint32_t round_pair(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ inline void sync_warpgroup(int warpgroup) { named_barrier_sync(warpgroup + 1, 128); }

// Starts d = a b^T, or d += a b^T, for tiles of kTileK columns. d must not be touched before the
// wait: ptxas would serialize the products (warning C7510).
template <int kSums>
__device__ inline void start_product(float (&d)[kSums], const bf16* a, const bf16* b,
                                     bool is_first) {
  warpgroup_arrive();
#pragma unroll
  for (int i = 0; i < kTileK / 16; ++i) {
    const uint64_t left = matrix_descriptor(address(a) & 0x3ffff),
                   right = matrix_descriptor(address(b) & 0x3ffff);
    wgmma<bf16>(d, left + 2 * i, right + 2 * i, i > 0 || !is_first);
  }
  warpgroup_commit_batch();
}

// Where 8 elements of a tile lie, 64 columns wide: a piece of 16 bytes. The pieces of a row are
// swizzled: those of 8 rows that stand below each other lie in different banks.
__device__ inline bf16* piece_of(bf16* tile, int row, int piece) {
  return tile + row * kTileK + (piece ^ row % 8) * 8;
}

// ldmatrix and stmatrix move four 8 x 8 matrices (`block`): lanes 0 to 7 pass the addresses of the
// rows of matrix 0, lanes 8 to 15 those of matrix 1, and so on. In 16 x 16 elements as mma takes
// and wgmma leaves them, 0 and 1 are one below the other, 2 and 3 to their right.
__device__ inline uint32_t row_of_lane(bf16* tile, int row, int piece) {
  const int block = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
  return address(piece_of(tile, row + block % 2 * 8 + line, piece + block / 2));
}

// The epilogue: rounds a warpgroup's accumulators and stores them, 64 columns at a time: to shared
// memory as TMA reads it, in swizzled rows, then by TMA, which copies in the background. Of each 8
// columns a thread has two neighbours. kGated: of 16 columns the first 8 are gates, so one thread
// has both of a pair.
template <bool kGated, int kSums>
__device__ void store_result(const CUtensorMap& map, bf16 (*buffers)[64 * 64], int& turn,
                             const float (&d)[kSums], int row, int column) {
  constexpr int kShare = kGated ? 2 : 1;
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, warp = thread / 32;
#pragma unroll
  for (int start = 0; start < kSums; start += 32 * kShare) {
    bf16* buffer = buffers[turn];
    turn ^= 1;
    if (thread == 0) tma_store_wait<1>();
    sync_warpgroup(warpgroup);  // the buffer is free
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (kGated) {
          const float* pair = d + start + i * 16 + j / 2 * 8 + j % 2 * 2;
          x[j] = round_pair(silu(pair[0]) * pair[4], silu(pair[1]) * pair[5]);
        } else {
          x[j] = round_pair(d[start + i * 8 + j * 2], d[start + i * 8 + j * 2 + 1]);
        }
      }
      stmatrix(row_of_lane(buffer, warp * 16, i * 2), x);
    }
    tma_store_fence();
    sync_warpgroup(warpgroup);
    if (thread == 0) store_tile(map, buffer, {column / kShare + start * 2 / kShare, row});
  }
}

// 7. C = A B^T, or its gated half. While a warpgroup rounds and stores a tile, the producer already
// loads the next one.
template <int kTileN, int kCluster, bool kGated>
__global__ void __launch_bounds__(384, 1)
    multiply(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
             const __grid_constant__ CUtensorMap c_map, int m, int n, int k, int tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  using Memory = SharedStorage<kTileN>;
  Memory& s = *reinterpret_cast<Memory*>(memory);
  constexpr int kStages = Memory::kStages;
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
  const int rank = blockIdx.x % kCluster, clusters = gridDim.x / kCluster;
  const int steps = (k + kTileK - 1) / kTileK;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&s.full[i], 1);              // the producer's arrive_and_expect_tx
      init_barrier(&s.empty[i], 8 * kCluster);  // each warp that reads what this block has loaded
    }
    fence_barrier_init();
  }
  cluster_sync();
  PipelineState<kStages> state;
  if (warpgroup == 2) {
    warpgroup_reg_dealloc<40>();
    if (thread == 0) {
      for (int i = blockIdx.x / kCluster; i < tiles; i += clusters) {
        const auto [row, column] = find_tile<kTileN, kCluster>(i, m, n);
        for (int step = 0; step < steps; ++step, state.advance()) {
          const int stage = state.stage, depth = step * kTileK;
          uint64_t* full = &s.full[stage];
          wait(&s.empty[stage], state.phase ^ 1);
          arrive_and_expect_tx(full, sizeof(s.a[0]) + sizeof(s.b[0]));
          load_tile(s.a[stage], a_map, full, {depth, row + rank * kTileM});
          if (kCluster == 1) {
            load_tile(s.b[stage], b_map, full, {depth, column});
          } else {  // each block loads a part of B's tile for both
            const int part = rank * kTileN / kCluster;
            load_tile(s.b[stage] + part * kTileK, b_map, full, {depth, column + part}, 3);
          }
        }
      }
    }
    __syncwarp();  // the warp goes on together; cluster_sync() would also take threads one by one
  } else {
    warpgroup_reg_alloc<232>();
    int turn = 0;                                // of the two buffers for results
    const auto release_stage = [&](int stage) {  // to the producers of all blocks that fill it
      if (lane < kCluster) arrive_at(&s.empty[stage], lane);
    };
    for (int i = blockIdx.x / kCluster; i < tiles; i += clusters) {
      const auto [row, column] = find_tile<kTileN, kCluster>(i, m, n);
      float d[kTileN / 2];
      int last = 0;
      for (int step = 0; step < steps; ++step, state.advance()) {
        wait(&s.full[state.stage], state.phase);
        start_product(d, s.a[state.stage] + warpgroup * 64 * kTileK, s.b[state.stage], step == 0);
        warpgroup_wait<1>();  // one product runs while the next one is started
        if (step > 0) release_stage(last);
        last = state.stage;
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(d);
      release_stage(last);
      store_result<kGated>(c_map, s.c[warpgroup], turn, d, row + rank * kTileM + warpgroup * 64,
                           column);
    }
    if (thread == 0) tma_store_wait<0>();
  }
  cluster_sync();  // a block must not end while the other one may still arrive at its barriers
}

// How TMA finds tiles of box_rows x kTileK in a row-major matrix. Returns NULL or an error message.
inline const char* make_tensor_map(CUtensorMap* map, const bf16* data, int rows, int columns,
                                   unsigned box_rows) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || columns % 8 != 0) {
    return "TMA needs rows and pointers that are multiples of 16 bytes";
  }
  return make_map<2>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, sizeof(bf16), data,
                     {cuuint64_t(columns), cuuint64_t(rows)}, {kTileK, box_rows},
                     CU_TENSOR_MAP_SWIZZLE_128B);
}

inline bool is_hopper() { return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

template <int kShape, bool kGated>
const char* launch_multiply(const Problem& p, const Plan& plan, cudaStream_t stream) {
  constexpr int kTileN = kShapes[kShape].tile_n, kCluster = kShapes[kShape].cluster;
  CUtensorMap a_map, b_map, c_map;
  const char* error = make_tensor_map(&a_map, p.a, p.m, p.k, kTileM);
  if (!error) error = make_tensor_map(&b_map, p.b, p.n, p.k, kTileN / kCluster);
  if (!error) error = make_tensor_map(&c_map, p.c, p.m, kGated ? p.n / 2 : p.n, 64);
  if (error) return error;
  const unsigned blocks = plan.blocks;
  return launch(multiply<kTileN, kCluster, kGated>,
                {blocks, 384, sizeof(SharedStorage<kTileN>), kCluster}, stream, a_map, b_map, c_map,
                p.m, p.n, p.k, plan.tiles);
}

// Computes C, or its gated half. Returns NULL or an error message.
template <bool kGated>
const char* launch_product(const Problem& p, cudaStream_t stream) {
  if (!is_hopper()) return "needs a GPU of compute capability 9.0 (Hopper)";
  const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
  const Plan plan = make_plan(p.m, p.n, p.k, processors, kGated ? 1 : kShapeCount);
  if constexpr (!kGated) {
    if (plan.shape == 1) return launch_multiply<1, false>(p, plan, stream);
    if (plan.shape == 2) return launch_multiply<2, false>(p, plan, stream);
    if (plan.shape == 3) return launch_multiply<3, false>(p, plan, stream);
    if (plan.shape == 4) return launch_multiply<4, false>(p, plan, stream);
    if (plan.shape == 5) return launch_multiply<5, false>(p, plan, stream);
  }
  return launch_multiply<0, kGated>(p, plan, stream);
}
