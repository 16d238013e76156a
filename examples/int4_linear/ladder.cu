// y = x W^T with 4-bit weights, in five rungs: each removes what limited the one before. bfloat16,
// N a multiple of 64 (rungs 4 and 5: 128), K of 128. ladder.py checks and times them;
// docs/12_int4_linear.md tells the story.
#include <cooperative_groups.h>

#include "common/divide.h"
#include "common/instructions.cuh"
#include "common/launch.cuh"
#include "common/tensor_map.cuh"

namespace {

using bf16 = __nv_bfloat16;
constexpr int kGroup = 128;  // columns of a row of W that share a scale and a zero

// What every rung gets. weight = (code - zero) * scale. codes: for rung 1 row by row, eight columns
// in a word, the first one in the lowest 4 bits; for the others in the order of fragments.
struct Problem {
  bf16* y;                // [m, n]
  const bf16* x;          // [m, k]
  const uint32_t* codes;  // [n, k / 8]
  const bf16* scale;      // [k / kGroup, n]
  const uint8_t* zero;    // as scale
  int m, n, k;
};

// 0. The definition, on the CPU. The pointers are the host's.
void on_cpu(const Problem& p) {
  for (int64_t i = 0; i < int64_t{p.m} * p.n; ++i) {
    const int64_t m = i / p.n, n = i % p.n;
    double sum = 0;
    for (int64_t k = 0; k < p.k; ++k) {
      const int code = p.codes[(n * p.k + k) / 8] >> k % 8 * 4 & 15;
      const int64_t group = k / kGroup * p.n + n;
      sum += (code - p.zero[group]) * __bfloat162float(p.scale[group]) *
             __bfloat162float(p.x[m * p.k + k]);
    }
    p.y[i] = __double2bfloat16(sum);
  }
}

// 1. One warp per output. A lane takes every 32nd word: it moves each code to the lowest 4 bits,
// converts it to a float, and multiplies.
__global__ void one_warp_per_output(Problem p) {
  const int n = blockIdx.x * 8 + threadIdx.x / 32, m = blockIdx.y, lane = threadIdx.x % 32;
  const uint32_t* codes = p.codes + int64_t{n} * (p.k / 8);
  float sum = 0;
  for (int i = lane; i < p.k / 8; i += 32) {
    const bf16* x = p.x + int64_t{m} * p.k + i * 8;
    const int64_t group = int64_t{i} * 8 / kGroup * p.n + n;
    const float scale = __bfloat162float(p.scale[group]), zero = p.zero[group];
    for (int j = 0; j < 8; ++j) {
      const float code = codes[i] >> 4 * j & 15;
      sum += (code - zero) * scale * __bfloat162float(x[j]);
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (lane == 0) p.y[int64_t{m} * p.n + n] = __float2bfloat16(sum);
}

// Codes in the order of fragments: 16 bytes are a lane's codes of 16 rows and 64 columns, a word
// for each of four mma.sync. Piece (row / 64, column / 64, row / 16 % 4) has those of a warp, 512
// bytes.
struct alignas(16) Words {
  uint32_t at[4];
};
__device__ const Words* words_of(const Problem& p, int row, int column) {
  const int64_t piece = (int64_t{row / 64} * (p.k / 64) + column / 64) * 4 + row / 16 % 4;
  return reinterpret_cast<const Words*>(p.codes) + piece * 32;
}

// Codes i and i + 4 of a word as two bfloat16, without a conversion. 0x4180 is 16, and its lowest
// bits but three count as ones: so 0x4180 | code << 3 is 16 + code. (The word lies turned left
// by 3.)
__device__ uint32_t two_codes(uint32_t word, int i) {
  const uint32_t turned = i < 3 ? word >> 4 * i : __funnelshift_r(word, word, 12);
  return lop3<0xea>(turned, 0x00780078, 0x41804180);  // turned & 0x00780078 | 0x41804180
}

// Sums of 16 rows of W and 8 rows of x, as mma.sync leaves them. A lane has rows 2 g and 2 g + 1 of
// W (g = lane / 4) for rows 2 t and 2 t + 1 of x (t = lane % 4): [0] and [1] of the even row of W.
using Sums = float[4];

// A group of 128 columns of 8 rows of x, and its sums. Of each 16 columns a lane needs 2 t, 2 t +
// 1, and the two that are 8 further.
struct Columns {
  uint32_t low[8], high[8];
  Sums sum = {};
};
__device__ void load_columns(Columns& x, const Problem& p, int group) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4,
            m = min(int(blockIdx.y * 8 + g), p.m - 1);
  const auto* pairs =
      reinterpret_cast<const uint32_t*>(p.x + int64_t{m} * p.k + group * kGroup) + t;
  const uint32_t ones[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
  for (int j = 0; j < 8; ++j) {
    x.low[j] = pairs[j * 8];
    x.high[j] = pairs[j * 8 + 4];
  }
  for (int j = 0; j < 8; ++j) mma<bf16>(x.sum, ones, x.low[j], x.high[j]);
}

// The codes of 16 rows, one group.
struct Codes {
  Words half[2];
};
__device__ Codes load_codes(const Problem& p, int row, int group) {
  const int lane = threadIdx.x % 32;
  return {{words_of(p, row, group * kGroup)[lane], words_of(p, row, group * kGroup + 64)[lane]}};
}

// Adds a group. sum (code - zero) x = sum (16 + code) x - (16 + zero) sum x: tensor cores make both
// sums, and scale and zero are needed once for 128 columns.
__device__ void add_group(Sums& sums, const Codes& codes, const Columns& x, const Problem& p,
                          int row, int group) {
  Sums part = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t a[4];
    for (int i = 0; i < 4; ++i) a[i] = two_codes(codes.half[j / 4].at[j % 4], i);
    mma<bf16>(part, a, x.low[j], x.high[j]);
  }
  const int64_t at = int64_t{group} * p.n + row + threadIdx.x % 32 / 4 * 2;
  const float2 scale = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(p.scale + at));
  const uchar2 zero = *reinterpret_cast<const uchar2*>(p.zero + at);
  for (int i = 0; i < 2; ++i) {
    sums[i] += scale.x * (part[i] - (16.f + zero.x) * x.sum[i]);
    sums[i + 2] += scale.y * (part[i + 2] - (16.f + zero.y) * x.sum[i + 2]);
  }
}

// Adds the sums of a block's 8 warps, which had other columns, and stores 16 rows for 8 of x.
__device__ void join_warps(const Problem& p, const Sums& sums, int row) {
  __shared__ float all[8][8][16];  // warp, row of x, row of W
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  __syncthreads();
  for (int i = 0; i < 4; ++i) all[warp][2 * t + i % 2][2 * g + i / 2] = sums[i];
  __syncthreads();
  const int m = threadIdx.x / 16, n = threadIdx.x % 16;
  if (m >= 8 || blockIdx.y * 8 + m >= p.m) return;
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += all[i][m][n];
  p.y[int64_t{blockIdx.y * 8 + m} * p.n + row + n] = __float2bfloat16(sum);
}

// 2. Tensor cores multiply: a warp has 16 rows, and 8 rows of x cost no more than one. The 8 warps
// of a block take the groups of columns in turn.
__global__ void __launch_bounds__(256) tensor_cores(Problem p) {
  const int row = blockIdx.x * 16;
  Sums sums = {};
#pragma unroll 1
  for (int group = threadIdx.x / 32; group < p.k / kGroup; group += 8) {
    Columns x;
    load_columns(x, p, group);
    add_group(sums, load_codes(p, row, group), x, p, row, group);
  }
  join_warps(p, sums, row);
}

// 3. A warp has 64 rows: what it loads of x serves four times as many codes, and it loads the codes
// of its next group before it uses those of this one, so more bytes are in flight.
__global__ void __launch_bounds__(256, 1) loads_ahead(Problem p) {
  const int first_row = blockIdx.x * 64, groups = p.k / kGroup;
  Sums sums[4] = {};
  Codes codes[4];
  const int first = threadIdx.x / 32;
  for (int i = 0; i < 4; ++i) codes[i] = load_codes(p, first_row + i * 16, min(first, groups - 1));
#pragma unroll 1
  for (int group = first; group < groups; group += 8) {
    Codes next[4];
    for (int i = 0; i < 4; ++i)
      next[i] = load_codes(p, first_row + i * 16, min(group + 8, groups - 1));
    Columns x;
    load_columns(x, p, group);
    for (int i = 0; i < 4; ++i) {
      add_group(sums[i], codes[i], x, p, first_row + i * 16, group);
      codes[i] = next[i];
    }
  }
  for (int i = 0; i < 4; ++i) join_warps(p, sums[i], first_row + i * 16);
}

// Many rows of x: a block has 128 rows of W and of x, and a ring of stages, each with 64 columns.
constexpr int kStages = 8, kTall = 128;
struct Ring {
  bf16 x[kStages][kTall * 64];      // as wgmma reads it: with the 128-byte swizzle
  Words codes[kStages][2][4 * 32];  // of each of two groups of 128 threads, 64 rows
  uint64_t full[kStages];
};
struct Maps {
  CUtensorMap x, codes;
};

// The columns of a block, if `splits` blocks share K; and its tile.
struct Work {
  int row, m, first_step, steps;  // a step: 64 columns
  __device__ Work(const Problem& p, int splits) {
    row = blockIdx.x / splits * kTall;
    m = blockIdx.y * kTall;
    const int groups = p.k / kGroup, part = blockIdx.x % splits;
    first_step = groups * part / splits * 2;
    steps = groups * (part + 1) / splits * 2 - first_step;
  }
};

__device__ void load_step(Ring& s, const Maps& maps, const Work& work, int step) {
  const int stage = step % kStages, column = work.first_step + step;
  expect_bytes(&s.full[stage], sizeof(s.x[0]) + sizeof(s.codes[0]));
  load_tile(s.x[stage], maps.x, &s.full[stage], {column * 64, work.m});
  load_tile(s.codes[stage], maps.codes, &s.full[stage], {0, column * 2, work.row / 64});
}

// Fragments of W, 16 rows and 64 columns: four times what mma.sync and wgmma want. Here each code
// serves 128 products, so zero and scale go into it.
__device__ void make_fragments(uint32_t (&a)[4][4], const Words& codes, const float2 (&affine)[2]) {
  for (int j = 0; j < 16; ++j) {
    const float2 row = affine[j % 2];  // 16 + zero, scale
    const auto code = bits<__nv_bfloat162>(two_codes(codes.at[j / 4], j % 4));
    const auto whole = __hsub2(code, __float2bfloat162_rn(row.x));  // exact
    a[j / 4][j % 4] = bits<uint32_t>(__hmul2(whole, __float2bfloat162_rn(row.y)));
  }
}

// Adds all columns of the block. d: as wgmma leaves it, of each 8 rows of x what Sums has.
__device__ void add_steps(float (&d)[kTall / 2], Ring& s, const Maps& maps, const Problem& p,
                          const Work& work) {
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int row = work.row + group * 64 + thread / 32 * 16 + thread % 32 / 4 * 2;
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : s.full) init_barrier(&barrier, 1);
    publish_barriers();
    for (int step = 0; step < min(kStages, work.steps); ++step) load_step(s, maps, work, step);
  }
  __syncthreads();
  const auto affine_at = [&](int step, int odd) {
    const int64_t at = int64_t{(work.first_step + step) / 2} * p.n + row + odd;
    return float2{16.f + p.zero[at], __bfloat162float(p.scale[at])};
  };
  float2 affine[2] = {affine_at(0, 0), affine_at(0, 1)}, next[2];
  uint32_t a[2][4][4];  // while tensor cores read the fragments of a step, the next ones are made
  for (int first = 0; first < work.steps; first += 2) {
    for (int odd = 0; odd < 2; ++odd)  // of the next group, while this one is multiplied
      next[odd] = affine_at(min(first + 2, work.steps - 1), odd);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = first + half, stage = step % kStages;
      wait(&s.full[stage], step / kStages % 2);
      make_fragments(a[half], s.codes[stage][group][thread], affine);
      const uint64_t x = describe(address(s.x[stage]));
      begin_products();
      for (int j = 0; j < 4; ++j) wgmma<bf16>(d, a[half][j], x + 2 * j, step + j > 0);
      commit_products();
      wait_products<1>();
      __syncthreads();  // all have read the stage before this one
      const int later = step - 1 + kStages;
      if (threadIdx.x == 0 && step > 0 && later < work.steps) load_step(s, maps, work, later);
    }
    affine[0] = next[0];
    affine[1] = next[1];
  }
  wait_products<0>();
  __syncthreads();
  release(d);
}

// 4. wgmma multiplies, TMA fills the ring: a code becomes a number once for 128 rows of x.
__global__ void __launch_bounds__(256, 1) many_rows(const __grid_constant__ Maps maps, Problem p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const Work work(p, 1);
  float d[kTall / 2];
  add_steps(d, *reinterpret_cast<Ring*>(memory), maps, p, work);
  const int row = work.row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2;
  const int m = work.m + threadIdx.x % 4 * 2;
  for (int i = 0; i < kTall / 2; ++i) {
    const int to_m = m + i / 4 * 8 + i % 2, to_row = row + i % 4 / 2;
    if (to_m < p.m) p.y[int64_t{to_m} * p.n + to_row] = __float2bfloat16(d[i]);
  }
}

// 5. Two blocks share the columns of a tile, as there are fewer tiles than multiprocessors. Each
// finishes half of the rows of x: it adds the other's sums, which it reads in that block's memory.
__global__ void __launch_bounds__(256, 1)
    two_blocks_share(const __grid_constant__ Maps maps, Problem p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  constexpr int kStride = kTall + 4;  // floats from one row of x to the next: banks differ
  const auto cluster = cooperative_groups::this_cluster();
  const Work work(p, 2);
  float d[kTall / 2];
  add_steps(d, *reinterpret_cast<Ring*>(memory), maps, p, work);
  float* all = reinterpret_cast<float*>(memory);  // in the place of the ring
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2, m = threadIdx.x % 4 * 2;
  for (int i = 0; i < kTall / 2; ++i)
    all[(m + i / 4 * 8 + i % 2) * kStride + row + i % 4 / 2] = d[i];
  cluster.sync();
  const float* others = cluster.map_shared_rank(all, cluster.block_rank() ^ 1);
  for (int i = threadIdx.x; i < kTall / 2 * kTall; i += blockDim.x) {
    const int at_m = cluster.block_rank() * (kTall / 2) + i / kTall,
              at = at_m * kStride + i % kTall;
    if (work.m + at_m < p.m)
      p.y[int64_t{work.m + at_m} * p.n + work.row + i % kTall] =
          __float2bfloat16(all[at] + others[at]);
  }
  cluster.sync();  // a block must not end while the other reads its sums
}

const char* launch_many(void (*kernel)(Maps, Problem), unsigned splits, const Problem& p,
                        cudaStream_t stream) {
  if (p.n % kTall) return "rungs 4 and 5 need N in multiples of 128";
  const cuuint64_t m = p.m, n = p.n, k = p.k;
  Maps maps;
  const char* error = make_map<2>(&maps.x, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p.x, {k, m},
                                  {64, kTall}, CU_TENSOR_MAP_SWIZZLE_128B);
  if (!error)
    error = make_map<3>(&maps.codes, CU_TENSOR_MAP_DATA_TYPE_INT32, 4, p.codes,
                        {256, k / 32, n / 64}, {256, 2, 2});
  if (error) return error;
  const dim3 blocks(p.n / kTall * splits, divide_up(p.m, kTall));
  return launch(kernel, {blocks, 256, sizeof(Ring), splits}, stream, maps, p);
}

}  // namespace

// Returns NULL, or why this rung does not run here. Rungs 2 and 3 take 8 rows of x per block.
extern "C" const char* launch_ladder(int rung, bf16* y, const bf16* x, const uint32_t* codes,
                                     const bf16* scale, const uint8_t* zero, int m, int n, int k,
                                     cudaStream_t stream) {
  const Problem p = {y, x, codes, scale, zero, m, n, k};
  if (m < 1 || n < 64 || n % 64 || k < 128 || k % 128) return "expected N in 64, K in 128";
  if (rung == 0) {
    on_cpu(p);
    return nullptr;
  }
  if (rung > 3 && device_attribute(cudaDevAttrComputeCapabilityMajor) != 9)
    return "rungs 4 and 5 need compute capability 9.0 (Hopper)";
  const unsigned rows = m, tiles = divide_up(m, 8);
  if (rung == 1) return launch(one_warp_per_output, {{n / 8u, rows}, 256}, stream, p);
  if (rung == 2) return launch(tensor_cores, {{n / 16u, tiles}, 256}, stream, p);
  if (rung == 3) return launch(loads_ahead, {{n / 64u, tiles}, 256}, stream, p);
  if (rung == 4) return launch_many(many_rows, 1, p, stream);
  return launch_many(two_blocks_share, 2, p, stream);
}
