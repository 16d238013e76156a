// Residual add and RMSNorm in bfloat16, in six rungs, and its gradient in two: each removes what
// limited the one before it. ladder.py checks and times them; docs/14_add_rms_norm.md explains each
// line.
#include <cuda_bf16.h>

#include "common/divide.h"
#include "common/instructions.cuh"
#include "common/launch.cuh"

using bf16 = __nv_bfloat16;

// What every rung gets. Tensors are rows x width; weight and dweight have width elements, rstd has
// one for each row. The forward pass reads a, b, weight and writes y, s, rstd. The gradient reads
// dy, ds, s, weight, rstd and writes dx, dweight.
struct Problem {
  bf16 *y, *s;
  float* rstd;
  const bf16 *a, *b, *weight;
  bf16 *dx, *dweight;
  float* sums;  // blocks x width: what each block has summed for dweight
  const bf16 *dy, *ds;
  int64_t rows;
  int width, blocks;  // blocks: of the gradient, which walk over the rows
};

namespace {

constexpr float kEps = 1e-6f;
constexpr int kThreads = 512, kMostBlocks = 16;  // in a block, in a cluster

__host__ __device__ float wide(bf16 x) { return __bfloat162float(x); }
__host__ __device__ bf16 add(bf16 x, bf16 y) { return __float2bfloat16(wide(x) + wide(y)); }
__host__ __device__ float square(bf16 x) { return wide(x) * wide(x); }

// The reference, on a CPU. Pointers are the host's.
void on_cpu(const Problem& p) {
  for (int64_t row = 0; row < p.rows; ++row) {
    const int64_t start = row * p.width;
    double squares = 0;
    for (int i = 0; i < p.width; ++i) {
      p.s[start + i] = add(p.a[start + i], p.b[start + i]);
      squares += square(p.s[start + i]);
    }
    p.rstd[row] = 1 / sqrt(squares / p.width + kEps);
    for (int i = 0; i < p.width; ++i)
      p.y[start + i] = __float2bfloat16(wide(p.s[start + i]) * p.rstd[row] * wide(p.weight[i]));
  }
}

// 1. One thread per row, as on a CPU. Neighbouring threads read addresses that are a row apart.
__global__ void one_thread_per_row(Problem p) {
  const int64_t row = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (row >= p.rows) return;
  const int64_t start = row * p.width;
  float squares = 0;
  for (int i = 0; i < p.width; ++i) {
    p.s[start + i] = add(p.a[start + i], p.b[start + i]);
    squares += square(p.s[start + i]);
  }
  const float scale = rsqrtf(squares / p.width + kEps);
  p.rstd[row] = scale;
  for (int i = 0; i < p.width; ++i)
    p.y[start + i] = __float2bfloat16(wide(p.s[start + i]) * scale * wide(p.weight[i]));
}

// As on page 11, for a row of blockDim.x threads, a multiple of 32; a block may have several rows,
// along y. Each call needs its own shared memory, warp_sums.
__device__ float sum_over_warp(float x) {
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffff, x, distance);
  return x;
}
__device__ float sum_over_block(float x, float* warp_sums) {
  x = sum_over_warp(x);
  const int warps = blockDim.x / 32;
  warp_sums += threadIdx.y * warps;
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < warps; ++warp) total += warp_sums[warp];
  return total;
}

// 2. One block per row: neighbours read neighbours.
__global__ void one_block_per_row(Problem p) {
  __shared__ float warp_sums[kThreads / 32];
  const int64_t start = blockIdx.x * int64_t(p.width);
  float squares = 0;
  for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
    p.s[start + i] = add(p.a[start + i], p.b[start + i]);
    squares += square(p.s[start + i]);
  }
  const float scale = rsqrtf(sum_over_block(squares, warp_sums) / p.width + kEps);
  if (threadIdx.x == 0) p.rstd[blockIdx.x] = scale;
  for (int i = threadIdx.x; i < p.width; i += blockDim.x)
    p.y[start + i] = __float2bfloat16(wide(p.s[start + i]) * scale * wide(p.weight[i]));
}

// Eight elements, which one instruction loads, as a uint4: __nv_bfloat162 has a copy constructor of
// its own, so an Eight would be copied pair by pair. They stay in pairs, two in a register. From
// here on the width is a multiple of 8.
struct alignas(16) Eight {
  __nv_bfloat162 pairs[4];
};
__device__ Eight load(const bf16* from) {
  return bits<Eight>(*reinterpret_cast<const uint4*>(from));
}
__device__ void store(bf16* to, const Eight& x) { *reinterpret_cast<uint4*>(to) = bits<uint4>(x); }
__device__ float wide(const Eight& x, int k) {
  return k % 2 == 0 ? __low2float(x.pairs[k / 2]) : __high2float(x.pairs[k / 2]);
}
__device__ Eight rounded(const float (&x)[8]) {
  Eight y;
  for (int k = 0; k < 8; k += 2) y.pairs[k / 2] = __floats2bfloat162_rn(x[k], x[k + 1]);
  return y;
}

__device__ Eight add(const Eight& a, const Eight& b) {
  Eight sum;
  for (int k = 0; k < 4; ++k) sum.pairs[k] = __hadd2(a.pairs[k], b.pairs[k]);
  return sum;
}
__device__ float sum_of_squares(const Eight& s) {
  float squares = 0;
  for (int k = 0; k < 8; ++k) squares += wide(s, k) * wide(s, k);
  return squares;
}
__device__ Eight scaled(const Eight& s, float scale, const Eight& weight) {
  float y[8];
  for (int k = 0; k < 8; ++k) y[k] = wide(s, k) * scale * wide(weight, k);
  return rounded(y);
}

// 3. 16 bytes per load: more bytes are in flight.
__global__ void vectors_of_eight(Problem p) {
  __shared__ float warp_sums[kThreads / 32];
  const int64_t start = blockIdx.x * int64_t(p.width);
  float squares = 0;
  for (int i = threadIdx.x * 8; i < p.width; i += blockDim.x * 8) {
    const Eight s = add(load(p.a + start + i), load(p.b + start + i));
    store(p.s + start + i, s);
    squares += sum_of_squares(s);
  }
  const float scale = rsqrtf(sum_over_block(squares, warp_sums) / p.width + kEps);
  if (threadIdx.x == 0) p.rstd[blockIdx.x] = scale;
  for (int i = threadIdx.x * 8; i < p.width; i += blockDim.x * 8)
    store(p.y + start + i, scaled(load(p.s + start + i), scale, load(p.weight + i)));
}

// A thread's part of a row: kVectors times 8 elements.
template <int kVectors>
struct RowPart {
  Eight s[kVectors] = {}, weight[kVectors] = {};
  int64_t row = blockIdx.x * int64_t(blockDim.y) + threadIdx.y;
  int first = (blockIdx.y * blockDim.x + threadIdx.x) * 8, step = gridDim.y * blockDim.x * 8;

  __device__ bool has(const Problem& p, int v) {
    return row < p.rows && first + v * step < p.width;
  }

  // Returns the sum of squares. All loads come first, so that they are in flight together.
  __device__ float load_and_add(const Problem& p) {
    Eight b[kVectors] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!has(p, v)) continue;
      const int i = first + v * step;
      s[v] = load(p.a + row * p.width + i);
      b[v] = load(p.b + row * p.width + i);
      weight[v] = load(p.weight + i);
    }
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      s[v] = add(s[v], b[v]);
      squares += sum_of_squares(s[v]);
      if (has(p, v)) store(p.s + row * p.width + first + v * step, s[v]);
    }
    return squares;
  }

  __device__ void scale_and_store(const Problem& p, float squares) {
    const float scale = rsqrtf(squares / p.width + kEps);
    if (first == 0 && row < p.rows) p.rstd[row] = scale;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = first + v * step;
      if (has(p, v)) store(p.y + row * p.width + i, scaled(s[v], scale, weight[v]));
    }
  }
};

// 4. The row stays in registers: s is not read again.
// 5. Blocks that fit: as many threads as the row has vectors, and several short rows.
template <int kVectors>
__global__ void __launch_bounds__(kThreads, 4 / kVectors) row_in_registers(Problem p) {
  __shared__ float warp_sums[kThreads / 32];
  RowPart<kVectors> part;
  const float squares = part.load_and_add(p);
  part.scale_and_store(p, sum_over_block(squares, warp_sums));
}

// 6. A cluster of blocks for a long row. Each warp sends its sum to every block, whose barrier
// counts the bytes. And a kernel starts while the one before it ends: it waits for that end before
// it touches memory.
template <int kVectors>
__global__ void __launch_bounds__(kThreads, 4 / kVectors) row_over_cluster(Problem p) {
  __shared__ float warp_sums[kMostBlocks * kThreads / 32];
  __shared__ uint64_t arrived;
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0 && gridDim.y > 1) {
    init_barrier(&arrived, 1);
    fence_barrier_init();
    arrive_and_expect_tx(&arrived, gridDim.y * warps * sizeof(float));
  }
  __syncwarp();
  if (gridDim.y > 1) cluster_arrive();
  wait_on_dependent_grids();
  launch_dependent_grids();
  RowPart<kVectors> part;
  float squares = part.load_and_add(p);
  if (gridDim.y == 1) {
    squares = sum_over_block(squares, warp_sums);
  } else {
    cluster_wait();  // all blocks have prepared their barriers
    squares = sum_over_warp(squares);
    if (lane < gridDim.y)
      send(squares, warp_sums + blockIdx.y * warps + threadIdx.x / 32, &arrived, lane);
    wait(&arrived, 0);
    squares = 0;
    for (int i = 0; i < gridDim.y * warps; ++i) squares += warp_sums[i];
  }
  part.scale_and_store(p, squares);
}

// The gradient. A thread's part of a row: 8 columns of what the gradient reads.
struct GradientPart {
  Eight s = {}, dy = {}, ds = {};
  float scale = 0;
};
__device__ GradientPart load_part(const Problem& p, int64_t row, int column) {
  GradientPart part;
  if (row >= p.rows || column >= p.width) return part;
  const int64_t at = row * p.width + column;
  return {load(p.s + at), load(p.dy + at), load(p.ds + at), p.rstd[row]};
}

// 7. Blocks walk over rows. A thread keeps the sums of its 8 columns in registers.
// 8. kAhead: and the next row is in flight while the block adds up this one.
template <bool kAhead>
__global__ void __launch_bounds__(kThreads) walk_over_rows(Problem p) {
  __shared__ float warp_sums[2][kThreads / 32];  // a fast warp may be a row ahead
  const int column = threadIdx.x * 8;
  const bool is_there = column < p.width;
  const Eight weight = is_there ? load(p.weight + column) : Eight();
  float sums[8] = {};
  GradientPart next = load_part(p, blockIdx.x, column);
  for (int64_t row = blockIdx.x, turn = 0; row < p.rows; row += gridDim.x, ++turn) {
    const GradientPart part = kAhead || turn == 0 ? next : load_part(p, row, column);
    if (kAhead) next = load_part(p, row + gridDim.x, column);
    float product = 0, dx[8];
    for (int k = 0; k < 8; ++k) {
      const float x = wide(part.s, k) * part.scale;
      product += wide(part.dy, k) * wide(weight, k) * x;
      sums[k] += wide(part.dy, k) * x;
    }
    const float mean = sum_over_block(product, warp_sums[turn % 2]) / p.width;
    for (int k = 0; k < 8; ++k) {
      const float x = wide(part.s, k) * part.scale;
      dx[k] = part.scale * (wide(part.dy, k) * wide(weight, k) - x * mean) + wide(part.ds, k);
    }
    if (is_there) store(p.dx + row * p.width + column, rounded(dx));
  }
  if (!is_there) return;
  for (int k = 0; k < 8; ++k) p.sums[blockIdx.x * p.width + column + k] = sums[k];
}

// Adds the blocks' sums, always in the same order: every run gives the same bits. A warp adds some
// of the rows of sums for 32 columns, and the first one then all warps' sums.
__global__ void add_sums(Problem p) {
  __shared__ float sums[32][32];
  const int column = blockIdx.x * 32 + threadIdx.x, warp = threadIdx.y;
  float sum = 0;
  for (int block = warp; block < p.blocks; block += 32) sum += p.sums[block * p.width + column];
  sums[warp][threadIdx.x] = sum;
  __syncthreads();
  if (warp > 0) return;
  for (int other = 1; other < 32; ++other) sum += sums[other][threadIdx.x];
  p.dweight[column] = __float2bfloat16(sum);
}

// The launch of rungs 4 to 6. A row of up to 4096 elements has one vector per thread, a wider one
// two: in rung 6 over up to 16 blocks, of 256 threads if they are enough.
const char* launch_in_registers(int rung, const Problem& p, cudaStream_t stream) {
  const int vectors = p.width / 8;
  const bool is_wide = vectors > kThreads;
  int blocks = 1, threads = kThreads, rows = 1;
  while (rung == 6 && is_wide && blocks < kMostBlocks && 512 * blocks < vectors) blocks *= 2;
  if (rung > 4) threads = 32 * divide_up(vectors, 32 * blocks * (is_wide ? 2 : 1));
  if (rung > 4 && threads < 128) rows = 128 / threads;
  if (2 * threads * blocks < vectors || threads > kThreads) return "the row does not fit";
  Launch how = {dim3(divide_up(p.rows, rows), blocks), dim3(threads, rows)};
  if (rung < 6) return launch(is_wide ? row_in_registers<2> : row_in_registers<1>, how, stream, p);
  how.cluster = dim3(1, blocks);
  how.is_early = true;
  return launch(is_wide ? row_over_cluster<2> : row_over_cluster<1>, how, stream, p);
}

const char* launch_backward(int rung, const Problem& p, cudaStream_t stream) {
  if (p.width > 8 * kThreads || p.width % 32 != 0) return "expected a multiple of 32 up to 4096";
  const auto kernel = rung == 7 ? walk_over_rows<false> : walk_over_rows<true>;
  if (const char* error = launch(kernel, {p.blocks, kThreads}, stream, p)) return error;
  return launch(add_sums, {p.width / 32, dim3(32, 32)}, stream, p);
}

}  // namespace

// rung 0: the reference, on a CPU; 1 to 6 forward, 7 and 8 the gradient. From rung 3 on the width
// is a multiple of 8, in rungs 4 and 5 at most 8192, in rung 6 131072. Returns NULL or an error
// message.
extern "C" const char* launch_ladder(int rung, const Problem& p, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(p.rows);
  if (rung > 2 && p.width % 8 != 0) return "expected a width that is a multiple of 8";
  if (rung == 1) return launch(one_thread_per_row, {divide_up(rows, 128u), 128}, stream, p);
  if (rung == 2) return launch(one_block_per_row, {rows, kThreads}, stream, p);
  if (rung == 3) return launch(vectors_of_eight, {rows, kThreads}, stream, p);
  if (rung > 6) return launch_backward(rung, p, stream);
  if (rung > 3) return launch_in_registers(rung, p, stream);
  on_cpu(p);
  return nullptr;
}
