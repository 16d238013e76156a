// The top of the ladder: persistent blocks, clusters, a producer thread and two warpgroups of
// consumers, results by TMA. Rung 7 stores the product; gated_linear's epilogue halves it first.
//
// It computes C^T = B A^T: the 64 rows of a warpgroup's wgmma are rows of B, of which there are
// many, and its columns are rows of A, which may be few.
#pragma once
#include <algorithm>
#include <utility>

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

// The stages of the pipeline: kTileM rows of B and kTileN rows of A each.
template <int kTileN>
struct SharedStorage {
  static constexpr int kStages = 4 * (kTileM + 256) / (kTileM + kTileN);
  bf16 b[kStages][kTileM * kTileK];
  bf16 a[kStages][kTileN * kTileK];
  bf16 c[2][2][64 * 64];  // two buffers for each warpgroup of consumers
  uint64_t full[kStages], empty[kStages];
};

// First row of B and of A of the block's tile in the cluster's turn i, in the order that suits L2:
// down a band of 2048 rows of B, then to the next rows of A. So blocks that run together read about
// 2048 rows of each.
struct Tile {
  int b_row, a_row;
};
template <int kTileN>
__device__ Tile find_tile(int i, const Plan& plan) {
  const int rows = plan.cluster_m == 1 ? 16 : 8;
  const int first = i / (rows * plan.wide) * rows;  // of the band
  const int here = min(rows, plan.high - first), place = i - first * plan.wide;
  Tile tile = {(first + place % here) * plan.cluster_m, place / here * plan.cluster_n};
  if (plan.cluster_m == 2) tile.b_row += blockIdx.x;
  if (plan.cluster_n == 2) tile.a_row += blockIdx.x;
  return {tile.b_row * kTileM, tile.a_row * kTileN};
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

// The same, 32 columns wide: TMA's swizzle of 64 bytes.
__device__ inline bf16* piece_of_half(bf16* tile, int row, int piece) {
  return tile + row * kTileK / 2 + (piece ^ row / 2 % 4) * 8;
}

// ldmatrix and stmatrix move four 8 x 8 matrices (`block`): lanes 0 to 7 pass the addresses of the
// rows of matrix 0, lanes 8 to 15 those of matrix 1, and so on. In 16 x 16 elements as mma takes
// and wgmma leaves them, 0 and 1 are one below the other, 2 and 3 to their right.
__device__ inline uint32_t row_of_lane(bf16* tile, int row, int piece) {
  const int block = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
  return address(piece_of(tile, row + block % 2 * 8 + line, piece + block / 2));
}

// What a thread holds of 8 columns of C^T, rows of A: two neighbours of a row of B, and two of the
// row 8 below. kGated: of 16 rows of B the first 8 are gates, so one thread has both of a pair.
__device__ inline uint32_t gated_pair(const float* d) {
  return round_pair(silu(d[0]) * d[2], silu(d[1]) * d[3]);
}

// Writes a warp's part of a buffer: kRows rows of C, 16 columns of it, or 8 if gated. stmatrix
// transposes: a thread holds neighbours of a column of C.
template <bool kGated, int kRows>
__device__ void write_rows(bf16* buffer, const float* d, int warp) {
  static_assert(kRows % (kGated ? 8 : 16) == 0);
  const int block = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
#pragma unroll
  for (int row = 0; row < kRows; row += kGated ? 32 : 16, d += kGated ? 16 : 8) {
    if constexpr (kGated) {  // where fewer than 32 rows are left, the first matrices once more
      const int blocks = row + 32 > kRows ? (kRows - row) / 8 : 4;
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = gated_pair(d + i % blocks * 4);
      const bf16* to = piece_of_half(buffer, row + block % blocks * 8 + line, warp);
      stmatrix<true>(address(to), x);
    } else {
      const uint32_t x[4] = {round_pair(d[0], d[1]), round_pair(d[4], d[5]), round_pair(d[2], d[3]),
                             round_pair(d[6], d[7])};
      stmatrix<true>(row_of_lane(buffer, row, warp * 2), x);
    }
  }
}

// Rows of C that a buffer of the epilogue has, 8 KB: 64 columns of each, or 32 if gated.
template <int kTileN, bool kGated>
constexpr int kBufferRows = std::min(kTileN, kGated ? 128 : 64);

// The epilogue: rounds a warpgroup's accumulators and stores them, a buffer at a time (the last one
// may overlap those before): to shared memory as TMA reads it, in swizzled rows, then by TMA, which
// copies in the background. at: the warpgroup's first row of B, and of A.
template <bool kGated, int kSums>
__device__ void store_result(const CUtensorMap& map, bf16 (*buffers)[64 * 64], int& turn,
                             const float (&d)[kSums], Tile at) {
  constexpr int kTileN = kSums * 2, kRows = kBufferRows<kTileN, kGated>;
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < kTileN; i += kRows) {
    const int start = i + kRows < kTileN ? i : kTileN - kRows;
    bf16* buffer = buffers[turn];
    turn ^= 1;
    if (thread == 0) tma_store_wait<1>();
    sync_warpgroup(warpgroup);  // the buffer is free
    write_rows<kGated, kRows>(buffer, d + start / 2, thread / 32);
    tma_store_fence();
    sync_warpgroup(warpgroup);
    const int column = kGated ? at.b_row / 2 : at.b_row;
    if (thread == 0) store_tile(map, buffer, {column, at.a_row + start});
  }
}

// Stores 16 rows of B's share of 8 rows of C, of which a warp holds the sums. movmatrix gives each
// lane neighbours of a row of C.
template <bool kGated>
__device__ void store_joined(const Problem& p, const float* d, int b_row, int a_row) {
  const int lane = threadIdx.x % 32, row = a_row + lane / 4;
  const int column = (kGated ? b_row / 2 : b_row) + lane % 4 * 2, columns = kGated ? p.n / 2 : p.n;
  const uint32_t low = movmatrix(kGated ? gated_pair(d) : round_pair(d[0], d[1]));
  const uint32_t high = kGated ? 0 : movmatrix(round_pair(d[2], d[3]));
  uint32_t* to = reinterpret_cast<uint32_t*>(p.c + int64_t{row} * columns + column);
  if (row < p.m && column < columns) to[0] = low;
  if (!kGated && row < p.m && column + 8 < columns) to[4] = high;
}

// Where K is split: the blocks of a cluster have sums of one part of K each for the same tile. The
// consumer warps of block i add up and store what warps i, i + split, ... hold in all blocks, so
// each warp sends its accumulators to one block. The parts are added in order: the result does not
// depend on who comes first.
template <bool kGated, int kSums>
__device__ void join_parts(float4* parts, const float (&d)[kSums], const Problem& p,
                           const Plan& plan, Tile at) {
  constexpr int kGroups = kSums / 4;  // of 8 columns of C^T
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int part = blockIdx.y, slots = divide_up(8, plan.split);
  const auto place = [&](int of_part, int slot, int group) {
    return parts + ((of_part * slots + slot) * kGroups + group) * 32 + lane;
  };
  const int to = warp % plan.split * gridDim.x + blockIdx.x;
  const uint32_t there = address_in(to, place(part, warp / plan.split, 0));
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const float* x = d + i * 4;
    store_in(there + i * 32 * sizeof(float4), make_float4(x[0], x[1], x[2], x[3]));
  }
  cluster_sync();  // all parts are here
  for (int slot = 0; slot * plan.split + part < 8; ++slot) {
    for (int i = warp; i < kGroups; i += 8) {
      float sum[4] = {};
      for (int of_part = 0; of_part < plan.split; ++of_part) {
        const float4 x = *place(of_part, slot, i);
        sum[0] += x.x;
        sum[1] += x.y;
        sum[2] += x.z;
        sum[3] += x.w;
      }
      store_joined<kGated>(p, sum, at.b_row + (slot * plan.split + part) * 16, at.a_row + i * 8);
    }
  }
}

// 7. C = A B^T, or its gated half. While a warpgroup rounds and stores a tile, the producer already
// loads the next one. Where K is split, each cluster has one tile.
template <int kTileN, bool kGated>
__global__ void __launch_bounds__(384, 1)
    multiply(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
             const __grid_constant__ CUtensorMap c_map, Problem p, Plan plan) {
  extern __shared__ __align__(1024) uint8_t memory[];
  using Memory = SharedStorage<kTileN>;
  Memory& s = *reinterpret_cast<Memory*>(memory);
  constexpr int kStages = Memory::kStages;
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
  const int pair = plan.cluster_m * plan.cluster_n, rank = blockIdx.x, part = blockIdx.y;
  const int first = part * plan.steps, end = min(first + plan.steps, divide_up(p.k, kTileK));
  launch_dependent_grids();  // the next kernel may start where multiprocessors are free
  if (threadIdx.x == 0) {
    prefetch_map(&a_map);
    prefetch_map(&b_map);
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&s.full[i], 1);          // the producer's arrive_and_expect_tx
      init_barrier(&s.empty[i], 8 * pair);  // each warp that reads what this block has loaded
    }
    fence_barrier_init();
  }
  cluster_sync();
  wait_on_dependent_grids();  // for A and B, and until nothing reads C any more
  PipelineState<kStages> state;
  if (warpgroup == 2) {
    warpgroup_reg_dealloc<40>();
    if (thread == 0) {
      // Of a tile that two blocks share, each loads a half for both.
      const uint16_t both = 3 << part * 2;
      const int b_half = plan.cluster_n == 2 ? rank * kTileM / 2 : 0;
      const int a_half = plan.cluster_m == 2 ? rank * kTileN / 2 : 0;
      const uint16_t b_mask = plan.cluster_n == 2 ? both : 0;
      const uint16_t a_mask = plan.cluster_m == 2 ? both : 0;
      for (int i = blockIdx.z; i < plan.high * plan.wide; i += gridDim.z) {
        const Tile at = find_tile<kTileN>(i, plan);
        for (int step = first; step < end; ++step, state.advance()) {
          const int stage = state.stage, depth = step * kTileK;
          uint64_t* full = &s.full[stage];
          wait(&s.empty[stage], state.phase ^ 1);
          arrive_and_expect_tx(full, sizeof(s.b[0]) + sizeof(s.a[0]));
          load_tile(s.b[stage] + b_half * kTileK, b_map, full, {depth, at.b_row + b_half}, b_mask);
          load_tile(s.a[stage] + a_half * kTileK, a_map, full, {depth, at.a_row + a_half}, a_mask);
        }
      }
    }
    __syncwarp();  // the warp goes on together; cluster_sync() would also take threads one by one
  } else {
    warpgroup_reg_alloc<232>();
    int turn = 0;                                // of the two buffers for results
    const auto release_stage = [&](int stage) {  // to the producers of all blocks that fill it
      if (lane < pair) arrive_at(&s.empty[stage], part * pair + lane);
    };
    for (int i = blockIdx.z; i < plan.high * plan.wide; i += gridDim.z) {
      Tile at = find_tile<kTileN>(i, plan);
      float d[kTileN / 2];
      int last = 0;
      for (int step = first; step < end; ++step, state.advance()) {
        wait(&s.full[state.stage], state.phase);
        start_product(d, s.b[state.stage] + warpgroup * 64 * kTileK, s.a[state.stage],
                      step == first);
        warpgroup_wait<1>();  // one product runs while the next one is started
        if (step > first) release_stage(last);
        last = state.stage;
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(d);
      release_stage(last);
      if (plan.split > 1) {
        cluster_sync();  // all blocks have read their stages, which take the sums now
        join_parts<kGated>(reinterpret_cast<float4*>(memory), d, p, plan, at);
        return;
      }
      at.b_row += warpgroup * 64;
      store_result<kGated>(c_map, s.c[warpgroup], turn, d, at);
    }
    if (thread == 0) tma_store_wait<0>();
  }
  cluster_sync();  // a block must not end while the other one may still arrive at its barriers
  if (plan.split > 1) cluster_sync();  // the producer's warps: that of join_parts
}

// How TMA finds tiles of box_rows x box_columns in a row-major matrix: 64 columns, or 32. Returns
// NULL or an error message.
inline const char* make_tensor_map(CUtensorMap* map, const bf16* data, int rows, int columns,
                                   unsigned box_rows, unsigned box_columns = kTileK) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || columns % 8 != 0) {
    return "TMA needs rows and pointers that are multiples of 16 bytes";
  }
  return make_map<2>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, sizeof(bf16), data,
                     {cuuint64_t(columns), cuuint64_t(rows)}, {box_columns, box_rows},
                     box_columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                     CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

inline bool is_hopper() { return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

template <int kTileN, bool kGated>
const char* launch_multiply(const Problem& p, const Plan& plan, cudaStream_t stream) {
  constexpr unsigned kRows = kBufferRows<kTileN, kGated>, kShare = kGated ? 2 : 1;
  CUtensorMap a_map, b_map, c_map;
  const char* error = make_tensor_map(&a_map, p.a, p.m, p.k, kTileN / plan.cluster_m);
  if (!error) error = make_tensor_map(&b_map, p.b, p.n, p.k, kTileM / plan.cluster_n);
  if (!error) error = make_tensor_map(&c_map, p.c, p.m, p.n / kShare, kRows, 64 / kShare);
  if (error) return error;
  const dim3 cluster(plan.cluster_m * plan.cluster_n, plan.split);
  const dim3 blocks(cluster.x, cluster.y, plan.clusters);
  const bool is_early = plan.clusters == plan.high * plan.wide;  // a tile for each: starts count
  return launch(multiply<kTileN, kGated>,
                {blocks, 384, sizeof(SharedStorage<kTileN>), cluster, is_early}, stream, a_map,
                b_map, c_map, p, plan);
}

template <bool kGated, int... kIndices>
const char* launch_width(const Problem& p, const Plan& plan, cudaStream_t stream,
                         std::integer_sequence<int, kIndices...>) {
  using Launch = const char*(const Problem&, const Plan&, cudaStream_t);
  static constexpr Launch* kLaunches[] = {launch_multiply<kWidths[kIndices], kGated>...};
  return kLaunches[plan.width](p, plan, stream);
}

// Starts the instance for the plan's width. Returns NULL or an error message.
template <bool kGated>
const char* launch_plan(const Problem& p, const Plan& plan, cudaStream_t stream) {
  return launch_width<kGated>(p, plan, stream, std::make_integer_sequence<int, kWidthCount>());
}

// Computes C, or its gated half. Returns NULL or an error message.
template <bool kGated>
const char* launch_product(const Problem& p, cudaStream_t stream) {
  if (!is_hopper()) return "needs a GPU of compute capability 9.0 (Hopper)";
  const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
  return launch_plan<kGated>(p, make_plan(p.m, p.n, p.k, processors), stream);
}
