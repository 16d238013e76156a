// y^T = W x^T for many rows of x, with wgmma, so for sm_90a: H100, H200 and others.
//
// A consumer warpgroup computes 64 rows of W for kBatch rows of x. A tensor core takes W as the
// left factor from registers, where codes become numbers anyway, and x as the right one from shared
// memory. One more thread, the producer, does nothing but order copies by TMA, into a pipeline of
// kStages stages, each for 64 or 128 columns. The blocks of a cluster share K if there are fewer
// tiles than multiprocessors, and send each other their sums.
#pragma once
#include "codes.cuh"
#include "plan.h"

namespace four_bit {

// Threads of a warpgroup; bytes after which the 128-byte swizzle repeats.
constexpr int kWarpgroup = 128, kSwizzlePeriod = 1024;

// Shape I of kShapes: kConsumers warpgroups, stages of kChunks times 64 columns.
template <int I>
struct ManyRowsShape {
  static constexpr int kBatch = kShapes[I].batch, kConsumers = kShapes[I].rows / 64;
  static constexpr int kChunks = kBatch <= 128 ? 2 : 1;
  static constexpr int kRows = kConsumers * 64, kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kStageBytes = kChunks * (kBatch * 128 + kRows * 32) + kRows * 3;
  static constexpr int kZeros = (kRows + 127) / 128 * 128;  // TMA writes at multiples of 128
  static constexpr int kFitting = 224 * 1024 / (kStageBytes + kZeros - kRows);
  static constexpr int kStages = kFitting < 12 ? kFitting : 12;
  struct Stages {
    uint8_t x[kStages][kChunks][kBatch * 128];  // 64 columns of each row, swizzled
    Words codes[kStages][kConsumers][kChunks][4 * 32];
    uint16_t scale[kStages][kRows];
    uint8_t zero[kStages][kZeros];
  };
  static constexpr int kShared = sizeof(Stages) + kSwizzlePeriod;  // they begin at a multiple of it
  static_assert(sizeof(Stages) >= (kBatch / 8 + kMostSplits) * kConsumers * 128 * 16);  // of a join
  // Registers of a thread: ptxas gives all equally many; then the producer's warpgroup gives most
  // of its own to the consumers.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = kConsumers <= 2 ? 240 : kConsumers == 3 ? 160 : 112;
};

struct Maps {
  CUtensorMap x, codes, scale, zero;
};

// A stage, the parity to wait for, and the barriers of all stages. Producer and consumers walk
// alike.
template <typename S>
struct PipelineState {
  uint64_t *full, *empty;
  int stage, phase;
  __device__ void advance() {
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    phase ^= stage == 0;
  }
};

// Tiles go along W's rows first. A block loops over them; those of a cluster have one together.
template <typename S>
struct Work {
  int tiles_of_w, first_tile, end_tile, step;
  int splits, part, first_group, groups;

  __device__ Work(const Int4Call& p, int splits, int first_tile, int end_tile)
      : end_tile(end_tile), splits(splits) {
    tiles_of_w = divide_up(p.n, S::kRows);
    step = gridDim.x / splits;
    this->first_tile = first_tile + blockIdx.x / splits;
    part = blockIdx.x % splits;
    first_group = groups_of(p) * part / splits;
    groups = groups_of(p) * (part + 1) / splits - first_group;
  }
  __device__ int row_of(int tile) const { return tile % tiles_of_w * S::kRows; }
  __device__ int m_of(int tile) const { return tile / tiles_of_w * S::kBatch; }
};

// As in few_pipeline.cuh: the first weights go to L2 while the kernel before ends. More than two
// groups would hold up the copies of x. Threads of the first warp take codes, of the second one
// scales and zeros, of the third one the maps.
template <typename T, typename S>
__device__ inline void prefetch_first(const Maps& maps, const Int4Call& p, const Work<S>& work) {
  const int row = work.row_of(work.first_tile), i = threadIdx.x, first = work.first_group;
  const int rows = min(S::kRows, p.n - row), groups = min(work.groups, 2);
  if (i < rows / 64 && groups > 0) {
    const int64_t block = static_cast<int64_t>(row / 64 + i) * (p.k / 64) + first * 2;
    const int chunks = min(groups * 2, p.k / 64 - first * 2);
    prefetch_bulk(static_cast<const Words*>(p.packed) + block * 128, chunks * 2048);
  } else if (i >= 32 && i < 32 + groups) {
    const int64_t affine = static_cast<int64_t>(first + i - 32) * p.n + row;
    prefetch_bulk(static_cast<const T*>(p.scale) + affine, rows * 2);
    prefetch_bulk(static_cast<const char*>(p.zero) + affine, rows);
  } else if (i >= 64 && i < 68) {
    prefetch_map(&maps.x + i - 64);
  }
}

// The producer: one thread orders all copies. It writes stages that are empty.
template <typename S>
__device__ inline void produce(typename S::Stages& stages, PipelineState<S> at, const Maps& maps,
                               const Work<S>& work) {
  for (int tile = work.first_tile; tile < work.end_tile; tile += work.step) {
    const int row = work.row_of(tile), m0 = work.m_of(tile);
    const int first = work.first_group * 2, end = first + work.groups * 2;  // 64 columns each
    for (int chunk = first; chunk < end; chunk += S::kChunks, at.advance()) {
      uint64_t* const full = &at.full[at.stage];
      wait(&at.empty[at.stage], at.phase);
      arrive_and_expect_tx(full, S::kStageBytes);
      load_tile(stages.codes[at.stage], maps.codes, full, {0, chunk * 2, row / 64});
      load_tile(stages.scale[at.stage], maps.scale, full, {row, chunk / 2});
      load_tile(stages.zero[at.stage], maps.zero, full, {row, chunk / 2});
      for (int i = 0; i < S::kChunks; ++i)
        load_tile(stages.x[at.stage][i], maps.x, full, {(chunk + i) * 64, m0});
    }
  }
}

// Which part of the fragments a thread has: rows of W `row` (even) and `row` + 1 of the tile.
struct Consumer {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
  int g = lane / 4, t = lane % 4, row = warp * kTile + 2 * g;
};

template <typename T>  // of a thread's two rows
__device__ inline void load_affine(Affine<T> (&affine)[2], const uint16_t* scales,
                                   const uint8_t* zeros) {
  const uint32_t two = *reinterpret_cast<const uint32_t*>(scales);
  const uchar2 zero = *reinterpret_cast<const uchar2*>(zeros);
  affine[0] = Affine<T>(__byte_perm(two, 0, kLowerTwice), zero.x);
  affine[1] = Affine<T>(__byte_perm(two, 0, kUpperTwice), zero.y);
}

// Codes of 64 columns become the fragments of four products.
template <typename T>
__device__ inline void make_fragments(uint32_t (&a)[4][4], const Words& codes,
                                      const Affine<T> (&affine)[2]) {
#pragma unroll
  for (int j = 0; j < 16; ++j)
    a[j / 4][j % 4] = affine[j % 2].weights(two_codes<T>(codes.at[j / 4], j % 4));
}

// The main loop of a consumer: adds all groups of a tile. While a tensor core reads the fragments
// of 64 columns, the next ones are made. `last`: the stage that the products in flight read, or -1.
template <typename T, typename S>
__device__ inline void add_groups(float (&sums)[S::kBatch / 2], typename S::Stages& stages,
                                  PipelineState<S>& at, int groups, const Consumer& my) {
  uint32_t a[2][4][4];
  Affine<T> affine[2];
  int last = -1;
  for (int i = 0; i < groups; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int chunk = half % S::kChunks;  // of its stage
      if (chunk == 0) wait(&at.full[at.stage], at.phase);
      if (half == 0) {  // both have the same scales
        load_affine(affine, stages.scale[at.stage] + my.row, stages.zero[at.stage] + my.row);
      }
      const Words* codes = &stages.codes[at.stage][my.warp / 4][chunk][my.warp % 4 * 32 + my.lane];
      make_fragments<T>(a[half], load_shared<Words>(address(codes)), affine);
      const uint64_t b = matrix_descriptor(address(stages.x[at.stage][chunk]));
      warpgroup_arrive();
#pragma unroll
      for (int j = 0; j < 4; ++j) wgmma<T>(sums, a[half][j], b + j * 2, true);
      warpgroup_commit_batch();
      warpgroup_wait<1>();
      // Only the last products may still be in flight, so the stage before is free.
      if (chunk == 0) {
        __syncwarp();
        if (my.lane == 0 && last >= 0) arrive(&at.empty[last]);
      }
      if (chunk == S::kChunks - 1) {
        last = at.stage;
        at.advance();
      }
    }
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
  __syncwarp();
  if (my.lane == 0 && last >= 0) arrive(&at.empty[last]);
}

// The epilogue where blocks share K: adds the sums of a cluster's blocks. Each finishes up to
// `owned` times 8 rows of x: the others send it their sums of these, which replace its stages:
// float4[block][owned][thread].
template <typename S>
__device__ inline void join_blocks(float (&sums)[S::kBatch / 2], float4* memory, uint64_t* joined,
                                   const Work<S>& work, int owned) {
  constexpr int kThreads = S::kThreads - kWarpgroup, kEights = S::kBatch / 8;
  float4* const mine = memory + threadIdx.x - kWarpgroup;  // of this consumer
  cluster_arrive();
  cluster_wait();  // all blocks have read their stages
  // Where the tile ends a block has fewer rows, or none.
  const int first = work.part * owned, count = max(0, min(owned, kEights - first));
  if (threadIdx.x == kWarpgroup)
    arrive_and_expect_tx(joined, (work.splits - 1) * count * kThreads * 16);
#pragma unroll
  for (int i = 0, owner = 0, place = 0; i < kEights; ++i, ++place) {
    if (place == owned) ++owner, place = 0;
    if (owner == work.part || owner >= work.splits) continue;
    const float4 four = {sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]};
    send(four, mine + (work.part * owned + place) * kThreads, joined, owner);
  }
  wait(joined, 0);  // all have sent to this block; those that it sends to wait for it
  for (int block = 0; block < work.splits; ++block) {
    if (block == work.part) continue;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      if (i < first || i >= first + owned) continue;
      const float4 more = mine[(block * owned + i - first) * kThreads];
      sums[i * 4] += more.x;
      sums[i * 4 + 1] += more.y;
      sums[i * 4 + 2] += more.z;
      sums[i * 4 + 3] += more.w;
    }
  }
}

// A thread has sums for rows m + 8 i and m + 8 i + 1 of x. Stores those with i from `first` to
// before `end`.
template <typename T, int kSums>
__device__ inline void store_rows(const float (&sums)[kSums], const Int4Call& p, int row, int m,
                                  int first, int end) {
  if (row >= p.n) return;
  using Pair = typename Half<T>::Pair;
  const auto* from = static_cast<const Pair*>(p.bias ? p.bias : p.scale) + row / 2;
  const float2 bias = p.bias ? Half<T>::floats(*from) : float2{0, 0};
  const int64_t width = p.is_gated ? p.n / 2 : p.n;
  T* y = static_cast<T*>(p.y) + m * width + (p.is_gated ? row / 2 : row);
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i, y += width * 8) {
    if (i < first || i >= end) continue;
    const int left = p.batch - m - i * 8;
    if (left > 0) store(y, bias + float2{sums[i * 4], sums[i * 4 + 2]}, p.is_gated);
    if (left > 1) store(y + width, bias + float2{sums[i * 4 + 1], sums[i * 4 + 3]}, p.is_gated);
  }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    many_rows(const __grid_constant__ Maps maps, const Int4Call p, int splits, int first_tile,
              int end_tile) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  __shared__ uint64_t full[S::kStages], empty[S::kStages], joined;
  const Work<S> work(p, splits, first_tile, end_tile);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(&full[i], 1);                   // the producer's arrive_and_expect_tx
      init_barrier(&empty[i], S::kConsumers * 4);  // a lane of each warp that reads it
    }
    init_barrier(&joined, 1);  // arrive_and_expect_tx of join_blocks
    fence_barrier_init();
  }
  prefetch_first<T>(maps, p, work);
  __syncthreads();
  launch_dependent_grids();
  wait_on_dependent_grids();

  const uint32_t unaligned = -address(memory) & (kSwizzlePeriod - 1);
  auto& stages = *reinterpret_cast<typename S::Stages*>(memory + unaligned / 16);
  if (threadIdx.x <
      kWarpgroup) {  // the producer and three idle warps: setmaxnreg counts warpgroups
    warpgroup_reg_dealloc<S::kProducerRegisters>();
    // It starts with parity 1, which a new barrier lets pass: all stages are empty.
    if (threadIdx.x == 0) produce<S>(stages, {full, empty, 0, 1}, maps, work);
    return;
  }
  warpgroup_reg_alloc<S::kConsumerRegisters>();
  PipelineState<S> at = {full, empty, 0, 0};
  const Consumer my;
  for (int tile = work.first_tile; tile < end_tile; tile += work.step) {
    const int m = work.m_of(tile), eights = divide_up(min(S::kBatch, p.batch - m), 8);
    const int owned = divide_up(eights, splits), first = owned * work.part;
    float sums[S::kBatch / 2] = {};
    add_groups<T>(sums, stages, at, work.groups, my);
    if (splits > 1) join_blocks(sums, reinterpret_cast<float4*>(&stages), &joined, work, owned);
    store_rows<T>(sums, p, work.row_of(tile) + my.row, m + 2 * my.t, first, first + owned);
  }
#endif
}

}  // namespace four_bit
