// y^T = W x^T for many rows of x, with wgmma, so for sm_90a: H100, H200 and others.
//
// A warpgroup of four warps computes 64 rows of W for BATCH rows of x. A tensor core takes W as the
// left factor from registers, where codes become numbers anyway, and x as the right one from shared
// memory. One more thread, the producer, does nothing but order copies by TMA, into a ring of
// STAGES slots, each for 64 or 128 columns. The blocks of a cluster share K if there are fewer
// tiles than multiprocessors, and send each other their sums.
#pragma once
#include "codes.cuh"
#include "plan.h"

namespace four_bit {

// Shape I of kShapes: TEAMS warpgroups, slots of CHUNKS times 64 columns.
template <int I>
struct Tile {
  static constexpr int BATCH = kShapes[I].batch, TEAMS = kShapes[I].rows / 64;
  static constexpr int CHUNKS = BATCH <= 128 ? 2 : 1;
  static constexpr int kRows = TEAMS * 64, kThreads = (TEAMS + 1) * 128;
  static constexpr int kBytes = CHUNKS * (BATCH * 128 + kRows * 32) + kRows * 3;  // of a slot
  static constexpr int kZeros = (kRows + 127) / 128 * 128;  // TMA writes at multiples of 128
  static constexpr int kFitting = 224 * 1024 / (kBytes + kZeros - kRows);
  static constexpr int STAGES = kFitting < 12 ? kFitting : 12;
  struct Ring {
    uint8_t x[STAGES][CHUNKS][BATCH * 128];  // 64 columns of each row, swizzled
    Words codes[STAGES][TEAMS][CHUNKS][4 * 32];
    uint16_t scale[STAGES][kRows];
    uint8_t zero[STAGES][kZeros];
  };
  static constexpr int kShared = sizeof(Ring) + 1024;  // the ring begins at a multiple of 1024
  static_assert(sizeof(Ring) >= (BATCH / 8 + kMostSplits) * TEAMS * 128 * 16);  // join_blocks
  // Registers of a thread: ptxas gives all equally many; then the producer's warpgroup gives most
  // of its own to the others.
  static constexpr int kProducer = 24, kOthers = TEAMS <= 2 ? 240 : TEAMS == 3 ? 160 : 112;
};

struct Maps {
  CUtensorMap x, codes, scale, zero;
};

// A place in the ring, the parity to wait for, and all slots' barriers. Producer and consumers walk
// alike.
template <typename S>
struct Position {
  uint64_t *is_full, *is_empty;
  int slot, phase;
  __device__ void advance() {
    slot = slot + 1 == S::STAGES ? 0 : slot + 1;
    phase ^= slot == 0;
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
  __device__ int m_of(int tile) const { return tile / tiles_of_w * S::BATCH; }
};

// As in few_copies.cuh: the first weights go to L2 while the kernel before ends. More than two
// groups would hold up the copies of x.
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

// The producer: one thread orders all copies.
template <typename S>
__device__ inline void produce(typename S::Ring& ring, Position<S> at, const Maps& maps,
                               const Work<S>& work) {
  for (int tile = work.first_tile; tile < work.end_tile; tile += work.step) {
    const int row = work.row_of(tile), m0 = work.m_of(tile);
    const int first = work.first_group * 2, end = first + work.groups * 2;  // 64 columns each
    for (int chunk = first; chunk < end; chunk += S::CHUNKS, at.advance()) {
      uint64_t* const full = &at.is_full[at.slot];
      wait(&at.is_empty[at.slot], at.phase);
      expect_bytes(full, S::kBytes);
      load_tile(ring.codes[at.slot], maps.codes, full, {0, chunk * 2, row / 64});
      load_tile(ring.scale[at.slot], maps.scale, full, {row, chunk / 2});
      load_tile(ring.zero[at.slot], maps.zero, full, {row, chunk / 2});
      for (int i = 0; i < S::CHUNKS; ++i)
        load_tile(ring.x[at.slot][i], maps.x, full, {(chunk + i) * 64, m0});
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
  affine[0] = Affine<T>(__byte_perm(two, 0, 0x1010), zero.x);
  affine[1] = Affine<T>(__byte_perm(two, 0, 0x3232), zero.y);
}

// Codes of 64 columns become the fragments of four products.
template <typename T>
__device__ inline void make_fragments(uint32_t (&a)[4][4], const Words& codes,
                                      const Affine<T> (&affine)[2]) {
#pragma unroll
  for (int j = 0; j < 16; ++j)
    a[j / 4][j % 4] = affine[j % 2].weights(two_codes<T>(codes.at[j / 4], j % 4));
}

// Adds all groups of a tile. While a tensor core reads the fragments of 64 columns, the next ones
// are made. `last`: the slot that the products in flight read, or -1.
template <typename T, typename S>
__device__ inline void add_groups(float (&sums)[S::BATCH / 2], typename S::Ring& ring,
                                  Position<S>& at, int groups, const Consumer& my) {
  uint32_t a[2][4][4];
  Affine<T> affine[2];
  int last = -1;
  for (int i = 0; i < groups; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int chunk = half % S::CHUNKS;  // of its slot
      if (chunk == 0) wait(&at.is_full[at.slot], at.phase);
      if (half == 0) {  // both have the same scales
        load_affine(affine, ring.scale[at.slot] + my.row, ring.zero[at.slot] + my.row);
      }
      const Words* codes = &ring.codes[at.slot][my.warp / 4][chunk][my.warp % 4 * 32 + my.lane];
      make_fragments<T>(a[half], load_shared<Words>(address(codes)), affine);
      const uint64_t b = describe(address(ring.x[at.slot][chunk]));
      begin_products();
#pragma unroll
      for (int j = 0; j < 4; ++j) wgmma<T>(sums, a[half][j], b + j * 2, true);
      commit_products();
      wait_products<1>();
      // Only the last products may still be in flight, so the slot before is free.
      if (chunk == 0) {
        __syncwarp();
        if (my.lane == 0 && last >= 0) arrive(&at.is_empty[last]);
      }
      if (chunk == S::CHUNKS - 1) {
        last = at.slot;
        at.advance();
      }
    }
  }
  wait_products<0>();
  release(sums);
  __syncwarp();
  if (my.lane == 0 && last >= 0) arrive(&at.is_empty[last]);
}

// Adds the sums of a cluster's blocks. Each finishes up to `share` times 8 rows of x: the others
// send it their sums of these, which replace its ring: float4[block][share][thread].
template <typename S>
__device__ inline void join_blocks(float (&sums)[S::BATCH / 2], float4* ring, uint64_t* joined,
                                   const Work<S>& work, int share) {
  constexpr int kThreads = S::kThreads - 128, kEights = S::BATCH / 8;
  float4* const mine = ring + threadIdx.x - 128;
  arrive_at_cluster();
  wait_for_cluster();  // all blocks have read their rings
  // Where the tile ends a block has fewer rows, or none.
  const int first = work.part * share, count = max(0, min(share, kEights - first));
  if (threadIdx.x == 128) expect_bytes(joined, (work.splits - 1) * count * kThreads * 16);
#pragma unroll
  for (int i = 0, owner = 0, place = 0; i < kEights; ++i, ++place) {
    if (place == share) ++owner, place = 0;
    if (owner == work.part || owner >= work.splits) continue;
    const float4 four = {sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]};
    send(four, mine + (work.part * share + place) * kThreads, joined, owner);
  }
  wait(joined, 0);  // all have sent to this block; those that it sends to wait for it
  for (int block = 0; block < work.splits; ++block) {
    if (block == work.part) continue;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      if (i < first || i >= first + share) continue;
      const float4 more = mine[(block * share + i - first) * kThreads];
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
  __shared__ uint64_t is_full[S::STAGES], is_empty[S::STAGES], joined;
  const Work<S> work(p, splits, first_tile, end_tile);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::STAGES; ++i) {
      init_barrier(&is_full[i], 1);
      init_barrier(&is_empty[i], S::TEAMS * 4);  // a lane of each warp that reads it
    }
    init_barrier(&joined, 1);
    publish_barriers();
  }
  prefetch_first<T>(maps, p, work);
  __syncthreads();
  start_next_kernel();
  wait_for_kernel_before();

  auto& ring = *reinterpret_cast<typename S::Ring*>(memory + (-address(memory) & 1023) / 16);
  if (threadIdx.x < 128) {  // the producer and three idle warps: setmaxnreg counts warpgroups
    give_registers<S::kProducer>();
    // It starts with parity 1, which a new barrier lets pass: all slots are empty.
    if (threadIdx.x == 0) produce<S>(ring, {is_full, is_empty, 0, 1}, maps, work);
    return;
  }
  take_registers<S::kOthers>();
  Position<S> at = {is_full, is_empty, 0, 0};
  const Consumer my;
  for (int tile = work.first_tile; tile < end_tile; tile += work.step) {
    const int m = work.m_of(tile), eights = divide_up(min(S::BATCH, p.batch - m), 8);
    const int share = divide_up(eights, splits), first = share * work.part;
    float sums[S::BATCH / 2] = {};
    add_groups<T>(sums, ring, at, work.groups, my);
    if (splits > 1) join_blocks(sums, reinterpret_cast<float4*>(&ring), &joined, work, share);
    store_rows<T>(sums, p, work.row_of(tile) + my.row, m + 2 * my.t, first, first + share);
  }
#endif
}

}  // namespace four_bit
