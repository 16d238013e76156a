// y = x W^T with 4-bit weights, in five rungs: each removes what limited the one before. bfloat16,
// N a multiple of 64 (rungs 4 and 5: 128), K of 128. ladder.py checks and times them;
// docs/16_int4_linear.md tells the story.
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

// Codes in the order of fragments. A warp's are those of 16 rows, a strip, and 64 columns; 16 bytes
// are one lane's, a word for each of four mma.sync.
struct alignas(16) Words {
  uint32_t at[4];
};
__device__ const Words* words_of(const Problem& p, int row, int column) {
  const int64_t strip = (int64_t{row / 64} * (p.k / 64) + column / 64) * 4 + row / 16 % 4;
  return reinterpret_cast<const Words*>(p.codes) + strip * 32;
}

// Pairs of bfloat16: twice 16, twice 1; and the bits of a mantissa that count as 8, 4, 2 and 1
// under the exponent of 16.
constexpr uint32_t kSixteens = 0x41804180, kOnes = 0x3f803f80, kCodeBits = 0x00780078;
constexpr int kAndThenOr = (0xf0 & 0xcc) | 0xaa;  // lop3's table of x & y | z

// Codes i and i + 4 of a word, as the bfloat16 16 + code, without a conversion: they are moved to
// those bits, and the exponent is set. The word was turned left by 3, so for i = 0 they lie there.
__device__ uint32_t two_codes(uint32_t word, int i) {
  const uint32_t turned = i < 3 ? word >> 4 * i : __funnelshift_r(word, word, 12);
  return lop3<kAndThenOr>(turned, kCodeBits, kSixteens);
}

// Sums of 16 rows of W and 8 rows of x, as mma.sync leaves them. A lane has rows 2 g and 2 g + 1 of
// W (g = lane / 4) for rows 2 t and 2 t + 1 of x (t = lane % 4): [0] and [1] of the even row of W.
using Accumulators = float[4];

// A lane's fragments of 8 rows and 128 columns of x, and the sums of these columns. Of each 16
// columns mma.sync wants 2 t and the next one (low), and those 8 further on (high).
struct FragmentsOfX {
  uint32_t low[8], high[8];
  Accumulators sum = {};
};
__device__ void load_x(FragmentsOfX& x, const Problem& p, int group) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int m = min(int(blockIdx.y * 8 + g), p.m - 1);
  const bf16* row = p.x + int64_t{m} * p.k + group * kGroup;
  const auto* pairs = reinterpret_cast<const uint32_t*>(row) + t;
  const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x.low[j] = pairs[j * 8];
    x.high[j] = pairs[j * 8 + 4];
    mma<bf16>(x.sum, ones, x.low[j], x.high[j]);
  }
}

// What a lane needs of a group of 16 rows: codes, and scale and zero of its two rows.
struct Codes {
  Words half[2];
  uint32_t scale;  // two bfloat16
  uchar2 zero;
};
__device__ Codes load_codes(const Problem& p, int row, int group) {
  const int lane = threadIdx.x % 32, column = group * kGroup;
  const int64_t at = int64_t{group} * p.n + row + lane / 4 * 2;
  return {{words_of(p, row, column)[lane], words_of(p, row, column + 64)[lane]},
          *reinterpret_cast<const uint32_t*>(p.scale + at),
          *reinterpret_cast<const uchar2*>(p.zero + at)};
}

// Adds a group. sum (code - zero) x = sum (16 + code) x - (16 + zero) sum x: tensor cores make both
// sums, and scale and zero are needed once for 128 columns.
__device__ void add_group(Accumulators& sums, const Codes& codes, const FragmentsOfX& x) {
  Accumulators part = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t a[4];
    for (int i = 0; i < 4; ++i) a[i] = two_codes(codes.half[j / 4].at[j % 4], i);
    mma<bf16>(part, a, x.low[j], x.high[j]);
  }
  const float2 scale = __bfloat1622float2(bits<__nv_bfloat162>(codes.scale));
  for (int i = 0; i < 2; ++i) {
    sums[i] += scale.x * (part[i] - (16.f + codes.zero.x) * x.sum[i]);
    sums[i + 2] += scale.y * (part[i + 2] - (16.f + codes.zero.y) * x.sum[i + 2]);
  }
}

// Adds the sums of a block's 8 warps, which had other columns, and stores 16 rows for 8 of x.
__device__ void join_warps(const Problem& p, const Accumulators& sums, int row) {
  __shared__ float all[8][8][16];  // warp, row of x, row of W
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  __syncthreads();  // needed only by a block with several tiles: all have read the last one's sums
  for (int i = 0; i < 4; ++i) all[warp][2 * t + i % 2][2 * g + i / 2] = sums[i];
  __syncthreads();  // all have written theirs
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
  Accumulators sums = {};
#pragma unroll 1
  for (int group = threadIdx.x / 32; group < p.k / kGroup; group += 8) {
    const Codes codes = load_codes(p, row, group);
    FragmentsOfX x;
    load_x(x, p, group);
    add_group(sums, codes, x);
  }
  join_warps(p, sums, row);
}

// 3. Loads ahead: a warp loads its next group before it uses this one, so more bytes are in flight.
// The first one it loads while the kernel before ends, which may still write x, but not weights.
__global__ void __launch_bounds__(256, 4) loads_ahead(Problem p) {
  const int row = blockIdx.x * 16, groups = p.k / kGroup, first = threadIdx.x / 32;
  Accumulators sums = {};
  Codes codes = load_codes(p, row, min(first, groups - 1));
  launch_dependent_grids();
  wait_on_dependent_grids();
#pragma unroll 1
  for (int group = first; group < groups; group += 8) {
    const Codes next = load_codes(p, row, min(group + 8, groups - 1));
    FragmentsOfX x;
    load_x(x, p, group);
    add_group(sums, codes, x);
    codes = next;
  }
  join_warps(p, sums, row);
}

// Many rows of x: a block's tile has 128 rows of W and 128 of x. A step is 64 columns. Two
// warpgroups multiply, 64 rows of W each; one thread of a further warp only loads.
constexpr int kTile = 128, kStages = 8, kConsumers = 256, kProducer = kConsumers;

// Places in shared memory that the producer fills in turn, one step each, and their barriers.
struct Pipeline {
  bf16 x[kStages][kTile * 64];      // as wgmma reads it: with the 128-byte swizzle
  Words codes[kStages][2][4 * 32];  // of each of the two warpgroups, 64 rows
  bf16 scale[kStages][kTile];
  uint8_t zero[kStages][kTile];
  uint64_t full[kStages], empty[kStages];
};
struct Maps {
  CUtensorMap x, codes, scale, zero;
};

// The tile of a block, and its columns if `splits` blocks share K.
struct Work {
  int row, m, first_step, steps;
  __device__ Work(const Problem& p, int splits) {
    row = blockIdx.x / splits * kTile;
    m = blockIdx.y * kTile;
    const int groups = p.k / kGroup, part = blockIdx.x % splits;
    first_step = groups * part / splits * 2;
    steps = groups * (part + 1) / splits * 2 - first_step;
  }
};

// Starts the copies of a step into its stage. All their bytes count at its barrier `full`.
__device__ void load_step(Pipeline& s, const Maps& maps, const Work& work, int step) {
  const int stage = step % kStages, column = work.first_step + step;
  uint64_t* full = &s.full[stage];
  arrive_and_expect_tx(
      full, sizeof(s.x[0]) + sizeof(s.codes[0]) + sizeof(s.scale[0]) + sizeof(s.zero[0]));
  load_tile(s.x[stage], maps.x, full, {column * 64, work.m});
  load_tile(s.codes[stage], maps.codes, full, {0, column * 2, work.row / 64});
  load_tile(s.scale[stage], maps.scale, full, {work.row, column / 2});
  load_tile(s.zero[stage], maps.zero, full, {work.row, column / 2});
}

// A lane's fragments of W, 16 rows and 64 columns: four times what mma.sync and wgmma want. Here
// each code serves 128 products, so zero and scale go into it.
__device__ void make_fragments(uint32_t (&a)[4][4], const Pipeline& s, int stage) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2;  // and the next one
  const Words codes = s.codes[stage][threadIdx.x / 128][threadIdx.x % 128];
  __nv_bfloat162 scale[2], zero[2];
  for (int odd = 0; odd < 2; ++odd) {
    scale[odd] = __bfloat162bfloat162(s.scale[stage][row + odd]);
    zero[odd] = __float2bfloat162_rn(16.f + s.zero[stage][row + odd]);
  }
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const auto code = bits<__nv_bfloat162>(two_codes(codes.at[j / 4], j % 4));
    a[j / 4][j % 4] = bits<uint32_t>(__hmul2(__hsub2(code, zero[j % 2]), scale[j % 2]));
  }
}

// The epilogue: adds the sums of the cluster's blocks, which had other columns. Each block finishes
// a part of the rows of x. d: of each 8 rows of x what Accumulators has.
__device__ void join_blocks(const float (&d)[kTile / 2], void* memory, const Problem& p,
                            const Work& work) {
  // Floats from one row of x to the next: two lanes of a warp meet in a bank; with kTile, four.
  constexpr int kStride = kTile + 4;
  const auto cluster = cooperative_groups::this_cluster();
  const int splits = cluster.num_blocks(), rows = kTile / splits;
  float* all = static_cast<float*>(memory);  // where the pipeline was
  if (threadIdx.x < kConsumers) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2, m = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i)
      all[(m + i / 4 * 8 + i % 2) * kStride + row + i % 4 / 2] = d[i];
  }
  cluster.sync();  // the sums of all blocks are there
  for (int i = threadIdx.x; i < rows * kTile; i += blockDim.x) {
    const int m = cluster.block_rank() * rows + i / kTile, row = i % kTile;
    float sum = 0;
    for (int part = 0; part < splits; ++part)
      sum += cluster.map_shared_rank(all, part)[m * kStride + row];
    if (work.m + m < p.m) p.y[int64_t{work.m + m} * p.n + work.row + row] = __float2bfloat16(sum);
  }
  cluster.sync();  // a block must not end while another reads its sums
}

// 4. wgmma multiplies, TMA fills the pipeline: a code becomes a number once for 128 rows of x.
// While tensor cores read the fragments of a step, a warp makes those of the next one, in the other
// half of a.
// 5. The same, but the two blocks of a cluster share the columns of a tile.
__global__ void __launch_bounds__(kConsumers + 32, 1)
    many_rows(const __grid_constant__ Maps maps, Problem p, int splits) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Pipeline& s = *reinterpret_cast<Pipeline*>(memory);
  const Work work(p, splits);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&s.full[i], 1);   // the producer's arrive_and_expect_tx
      init_barrier(&s.empty[i], 8);  // one thread of each consumer warp
    }
    fence_barrier_init();
  }
  __syncthreads();
  float d[kTile / 2] = {};
  if (threadIdx.x == kProducer) {
    for (int step = 0; step < work.steps; ++step) {
      wait(&s.empty[step % kStages], step / kStages % 2 ^ 1);
      load_step(s, maps, work, step);
    }
  } else if (threadIdx.x < kConsumers) {
    uint32_t a[2][4][4];  // fragments of two steps
    for (int first = 0; first < work.steps; first += 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int step = first + half, stage = step % kStages;
        wait(&s.full[stage], step / kStages % 2);
        make_fragments(a[half], s, stage);
        const uint64_t x = matrix_descriptor(address(s.x[stage]));
        warpgroup_arrive();
        for (int j = 0; j < 4; ++j) wgmma<bf16>(d, a[half][j], x + 2 * j, true);
        warpgroup_commit_batch();
        warpgroup_wait<1>();  // those before have ended, so their stage is free
        if (step > 0 && threadIdx.x % 32 == 0) arrive(&s.empty[(step - 1) % kStages]);
      }
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(d);
  }
  __syncthreads();  // all have read the pipeline
  join_blocks(d, memory, p, work);
}

const char* launch_many(unsigned splits, const Problem& p, cudaStream_t stream) {
  if (p.n % kTile) return "rungs 4 and 5 need N in multiples of 128";
  const cuuint64_t m = p.m, n = p.n, k = p.k;
  const auto half = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  Maps maps;
  for (const char* error :
       {make_map<2>(&maps.x, half, 2, p.x, {k, m}, {64, kTile}, CU_TENSOR_MAP_SWIZZLE_128B),
        make_map<3>(&maps.codes, CU_TENSOR_MAP_DATA_TYPE_INT32, 4, p.codes, {256, k / 32, n / 64},
                    {256, 2, 2}),
        make_map<2>(&maps.scale, half, 2, p.scale, {n, k / kGroup}, {kTile, 1}),
        make_map<2>(&maps.zero, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, p.zero, {n, k / kGroup},
                    {kTile, 1})})
    if (error) return error;
  const dim3 blocks(p.n / kTile * splits, divide_up(p.m, kTile));
  return launch(many_rows, {blocks, kConsumers + 32, sizeof(Pipeline), splits}, stream, maps, p,
                splits);
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
  if (rung == 3) return launch(loads_ahead, {{n / 16u, tiles}, 256, 0, 1, true}, stream, p);
  return launch_many(rung == 4 ? 1 : 2, p, stream);
}
