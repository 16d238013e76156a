// C = A B^T in bfloat16 with float32 sums, in seven rungs: each changes what the profiler showed of
// the one before. A is m x k, B is n x k (as in nn.Linear), row-major. Rungs 4 to 7 need a k
// that is a multiple of 8, rung 7 also such an n. ladder.py checks and times them;
// docs/15_matmul.md tells the story. Rung 7 is in product.cuh.
#include "product.cuh"

#include <cuda_pipeline.h>

namespace {

__device__ float element(const bf16* x, int row, int column, int rows, int columns) {
  if (row >= rows || column >= columns) return 0;
  return __bfloat162float(x[static_cast<int64_t>(row) * columns + column]);
}

// Stores two neighbours of a row of C, as far as they are inside.
__device__ void store_pair(const Problem& p, int row, int column, float x, float y) {
  if (row >= p.m || column >= p.n) return;
  bf16* to = p.c + static_cast<int64_t>(row) * p.n + column;
  if (p.n % 2 == 0) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
  } else {
    to[0] = __float2bfloat16(x);
    if (column + 1 < p.n) to[1] = __float2bfloat16(y);
  }
}

// 0. The definition, on the CPU: m, n and k loops. The pointers are the host's.
void on_cpu(Problem p) {
  for (int64_t row = 0; row < p.m; ++row) {
    for (int64_t column = 0; column < p.n; ++column) {
      const bf16 *a = p.a + row * p.k, *b = p.b + column * p.k;
      float sum = 0;
      for (int i = 0; i < p.k; ++i) sum += __bfloat162float(a[i]) * __bfloat162float(b[i]);
      p.c[row * p.n + column] = __float2bfloat16(sum);
    }
  }
}

// 1. One thread per element of C. Each product reads two numbers from the caches.
__global__ void one_per_thread(Problem p) {
  const int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
  if (row >= p.m || column >= p.n) return;
  const bf16* a = p.a + static_cast<int64_t>(row) * p.k;
  const bf16* b = p.b + static_cast<int64_t>(column) * p.k;
  float sum = 0;
  for (int i = 0; i < p.k; ++i) sum += __bfloat162float(a[i]) * __bfloat162float(b[i]);
  p.c[static_cast<int64_t>(row) * p.n + column] = __float2bfloat16(sum);
}

// 2. Tiles in shared memory. A block of 32 x 32 threads loads each number once for 32 products.
__global__ void tiles_in_shared_memory(Problem p) {
  __shared__ float a[32][33], b[32][33];  // a row of 33: threads of a warp read different banks
  const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32, column = blockIdx.x * 32;
  float sum = 0;
  for (int start = 0; start < p.k; start += 32) {
    a[y][x] = element(p.a, row + y, start + x, p.m, p.k);
    b[y][x] = element(p.b, column + y, start + x, p.n, p.k);
    __syncthreads();
    for (int i = 0; i < 32; ++i) sum += a[y][i] * b[x][i];
    __syncthreads();
  }
  if (row + y < p.m && column + x < p.n) {
    p.c[static_cast<int64_t>(row + y) * p.n + column + x] = __float2bfloat16(sum);
  }
}

// 3. 8 x 8 sums per thread: 16 numbers from shared memory serve 64 products. Tiles of 128 x 128.
__global__ void __launch_bounds__(256) many_sums_per_thread(Problem p) {
  constexpr int kStep = 16;
  __shared__ __align__(16) float a[kStep][132], b[kStep][132];  // turned: threads read 4 at a time
  const int row = blockIdx.y * 128, column = blockIdx.x * 128;
  const int x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;
  const auto place = [](int i) { return i / 4 * 64 + i % 4; };  // 4 neighbours, 64 further 4 more
  float sums[8][8] = {};
  for (int start = 0; start < p.k; start += kStep) {
    for (int i = threadIdx.x; i < 128 * kStep; i += 256) {
      const int line = i / kStep, depth = i % kStep;
      a[depth][line] = element(p.a, row + line, start + depth, p.m, p.k);
      b[depth][line] = element(p.b, column + line, start + depth, p.n, p.k);
    }
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kStep; ++depth) {
      float left[8], right[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        left[i] = a[depth][y + place(i)];
        right[i] = b[depth][x + place(i)];
      }
#pragma unroll
      for (int i = 0; i < 64; ++i) sums[i / 8][i % 8] += left[i / 8] * right[i % 8];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    const int to_row = row + y + place(i / 8), to_column = column + x + place(i % 8);
    store_pair(p, to_row, to_column, sums[i / 8][i % 8], sums[i / 8][i % 8 + 1]);
  }
}

// Copies 128 rows of 64 columns in the background, 16 bytes at a time; zeros beyond the matrix.
__device__ void copy_tile(bf16* tile, const bf16* x, int row, int column, int rows, int columns) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int line = i * 16 + threadIdx.x / 8, piece = threadIdx.x % 8;
    const int from_row = row + line, from_column = column + piece * 8;
    const bool is_inside = from_row < rows && from_column < columns;
    const bf16* from = is_inside ? x + static_cast<int64_t>(from_row) * columns + from_column : x;
    copy_16(address(piece_of(tile, line, piece)), from, is_inside);
  }
}

// ldmatrix for 16 rows of A, and for 16 of B, two times 8: there the 8 x 8 matrices go to the right
// first.
__device__ void load_a(uint32_t (&x)[4], bf16* tile, int row, int piece) {
  ldmatrix(x, row_of_lane(tile, row, piece));
}
__device__ void load_b(uint32_t (&x)[4], bf16* tile, int row, int piece) {
  const int block = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
  ldmatrix(x, address(piece_of(tile, row + block / 2 * 8 + line, piece + block % 2)));
}

// Stores what a lane holds of 16 x 8 sums: two neighbours, and two more 8 rows below.
__device__ void store_block(const Problem& p, const float* d, int row, int column) {
  const int lane = threadIdx.x % 32, to_row = row + lane / 4, to_column = column + lane % 4 * 2;
  store_pair(p, to_row, to_column, d[0], d[1]);
  store_pair(p, to_row + 8, to_column, d[2], d[3]);
}

// 4. Tensor cores: mma.sync multiplies 16 x 16 by 16 x 8 per warp. 4 warps of 64 x 64 each; copies
// of the next two tiles are in flight.
__global__ void __launch_bounds__(128) tensor_cores(Problem p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  constexpr int kStages = 3, kTile = 128 * kTileK;
  const auto tiles_of = [&](int step) {  // one of A, and behind it one of B
    return reinterpret_cast<bf16*>(memory) + step % kStages * 2 * kTile;
  };
  const int row = blockIdx.y * 128, column = blockIdx.x * 128, steps = (p.k + kTileK - 1) / kTileK;
  const int a_row = threadIdx.x / 64 * 64, b_row = threadIdx.x / 32 % 2 * 64;  // this warp's first
  const auto copy = [&](int step) {
    if (step < steps) {
      copy_tile(tiles_of(step), p.a, row, step * kTileK, p.m, p.k);
      copy_tile(tiles_of(step) + kTile, p.b, column, step * kTileK, p.n, p.k);
    }
    __pipeline_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  float d[4][8][4] = {};
  for (int step = 0; step < steps; ++step) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // this step's tiles are here, and all have left those of the step before
    copy(step + kStages - 1);
    bf16 *a = tiles_of(step), *b = a + kTile;
#pragma unroll
    for (int piece = 0; piece < kTileK / 8; piece += 2) {
      uint32_t left[4][4], right[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_a(left[i], a, a_row + i * 16, piece);
        load_b(right[i], b, b_row + i * 16, piece);
      }
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const uint32_t* y = right[i % 8 / 2] + i % 2 * 2;  // 8 of load_b's 16 rows
        mma<bf16>(d[i / 8][i % 8], left[i / 8], y[0], y[1]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    store_block(p, d[i / 8][i % 8], row + a_row + i / 8 * 16, column + b_row + i % 8 * 8);
  }
}

// Stores the accumulators that wgmma leaves in a warpgroup's registers: 64 rows, 16 for each warp,
// 8 columns at a time.
template <int kSums>
__device__ void store_accumulators(const Problem& p, const float (&d)[kSums], int row, int column) {
  row += threadIdx.x % 128 / 32 * 16;
#pragma unroll
  for (int i = 0; i < kSums; i += 4) store_block(p, d + i, row, column + i * 2);
}

// The pipeline of rungs 5 and 6: four stages, each with the tiles of one step, 128 rows of A and
// 256 of B. Step 4 goes into stage 0 again, when step 0 has been read.
constexpr int kStages = 4, kTileN = 256;
struct Pipeline {
  bf16 a[kStages][kTileM * kTileK], b[kStages][kTileN * kTileK];
  uint64_t full[kStages], empty[kStages];
};

__device__ void load_step(Pipeline& s, int step, const CUtensorMap& a_map,
                          const CUtensorMap& b_map) {
  uint64_t* full = &s.full[step % kStages];
  arrive_and_expect_tx(full, sizeof(s.a[0]) + sizeof(s.b[0]));
  load_tile(s.a[step % kStages], a_map, full, {step * kTileK, int(blockIdx.y) * kTileM});
  load_tile(s.b[step % kStages], b_map, full, {step * kTileK, int(blockIdx.x) * kTileN});
}

// 5. wgmma reads both tiles from shared memory, TMA fills it. Two warpgroups of 128 threads, each
// with 64 x 256 sums. All threads meet before one of them fills a tile again.
__global__ void __launch_bounds__(256, 1)
    wgmma_and_tma(const __grid_constant__ CUtensorMap a_map,
                  const __grid_constant__ CUtensorMap b_map, Problem p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Pipeline& s = *reinterpret_cast<Pipeline*>(memory);
  const int warpgroup = threadIdx.x / 128, steps = (p.k + kTileK - 1) / kTileK;
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : s.full) init_barrier(&barrier, 1);
    fence_barrier_init();
    for (int step = 0; step < min(kStages, steps); ++step) load_step(s, step, a_map, b_map);
  }
  __syncthreads();
  float d[kTileN / 2];
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages, phase = step / kStages % 2;
    wait(&s.full[stage], phase);
    start_product(d, s.a[stage] + warpgroup * 64 * kTileK, s.b[stage], step == 0);
    warpgroup_wait<0>();
    __syncthreads();
    if (threadIdx.x == 0 && step + kStages < steps) load_step(s, step + kStages, a_map, b_map);
  }
  warpgroup_fence_operand(d);
  store_accumulators(p, d, blockIdx.y * kTileM + warpgroup * 64, blockIdx.x * kTileN);
}

// 6. One thread produces: it waits until a stage is empty, and fills it. Two warpgroups consume:
// they wait until it is full. They have no barrier in common, but a fast one can be ahead only by
// the stages, as both must have read one before it is filled again. The producer gives its
// registers to them.
__global__ void __launch_bounds__(384, 1)
    producer_and_consumers(const __grid_constant__ CUtensorMap a_map,
                           const __grid_constant__ CUtensorMap b_map, Problem p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Pipeline& s = *reinterpret_cast<Pipeline*>(memory);
  const int warpgroup = threadIdx.x / 128, steps = (p.k + kTileK - 1) / kTileK;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&s.full[i], 1);   // the producer's arrive_and_expect_tx
      init_barrier(&s.empty[i], 8);  // one thread of each consuming warp
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (warpgroup == 2) {
    warpgroup_reg_dealloc<40>();
    if (threadIdx.x == 256) {
      for (int step = 0; step < steps; ++step) {
        const int stage = step % kStages, phase = step / kStages % 2;
        wait(&s.empty[stage], phase ^ 1);  // a new barrier lets 1 pass: all stages are empty
        load_step(s, step, a_map, b_map);
      }
    }
  } else {
    warpgroup_reg_alloc<232>();
    float d[kTileN / 2];
    for (int step = 0; step < steps; ++step) {
      const int stage = step % kStages, phase = step / kStages % 2;
      wait(&s.full[stage], phase);
      start_product(d, s.a[stage] + warpgroup * 64 * kTileK, s.b[stage], step == 0);
      warpgroup_wait<1>();  // this product still runs and reads its stage; the one before has ended
      if (step > 0 && threadIdx.x % 32 == 0) arrive(&s.empty[(step - 1) % kStages]);
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(d);
    store_accumulators(p, d, blockIdx.y * kTileM + warpgroup * 64, blockIdx.x * kTileN);
  }
}

dim3 grid(const Problem& p, int rows, int columns) {
  return dim3(divide_up(p.n, columns), divide_up(p.m, rows));
}

using HopperKernel = void(CUtensorMap, CUtensorMap, Problem);
const char* launch_hopper(HopperKernel* kernel, unsigned threads, const Problem& p,
                          cudaStream_t stream) {
  CUtensorMap a_map, b_map;
  const char* error = make_tensor_map(&a_map, p.a, p.m, p.k, kTileM);
  if (!error) error = make_tensor_map(&b_map, p.b, p.n, p.k, kTileN);
  if (error) return error;
  return launch(kernel, {grid(p, kTileM, kTileN), threads, sizeof(Pipeline)}, stream, a_map, b_map,
                p);
}

}  // namespace

// Returns NULL, or why this rung does not run here.
extern "C" const char* launch_ladder(int rung, bf16* c, const bf16* a, const bf16* b, int m, int n,
                                     int k, cudaStream_t stream) {
  const Problem p = {c, a, b, m, n, k};
  const bool is_aligned = k % 8 == 0 && (uintptr_t(a) | uintptr_t(b)) % 16 == 0;
  if (m < 1 || n < 1 || k < 1) return "m, n and k must be at least 1";
  if (rung == 0) {
    on_cpu(p);
    return nullptr;
  }
  if (rung > 4 && !is_hopper()) return "rungs 5 to 7 need compute capability 9.0 (Hopper)";
  if (rung == 1) one_per_thread<<<grid(p, 8, 32), dim3(32, 8), 0, stream>>>(p);
  if (rung == 2) tiles_in_shared_memory<<<grid(p, 32, 32), dim3(32, 32), 0, stream>>>(p);
  if (rung == 3) many_sums_per_thread<<<grid(p, 128, 128), 256, 0, stream>>>(p);
  if (rung == 4) {
    if (!is_aligned) return "cp.async needs rows and pointers that are multiples of 16 bytes";
    const size_t bytes = 3 * 2 * 128 * kTileK * sizeof(bf16);
    return launch(tensor_cores, {grid(p, 128, 128), 128, bytes}, stream, p);
  }
  if (rung == 5) return launch_hopper(wgmma_and_tma, 256, p, stream);
  if (rung == 6) return launch_hopper(producer_and_consumers, 384, p, stream);
  if (rung == 7) return launch_product<false>(p, stream);
  return message_of(cudaGetLastError());
}

// Rung 7 by any plan, for tests.
extern "C" const char* launch_with_plan(const Plan* plan, bf16* c, const bf16* a, const bf16* b,
                                        int m, int n, int k, cudaStream_t stream) {
  if (!is_hopper()) return "rung 7 needs compute capability 9.0 (Hopper)";
  return launch_plan<false>({c, a, b, m, n, k}, *plan, stream);
}
