// The backward kernels: they read s, dy and ds and write dx. With x = s * rstd and g = dy * weight:
//     dx = rstd * (g - x * mean(g * x)) + ds          dweight = the sum over all rows of dy * x
// Blocks are persistent: each walks over rows, keeps the sums for its columns in registers, and
// writes them once. add_partial adds the blocks' sums in a fixed order, so every run gives the same
// bits; with atomics the order would vary.
#pragma once
#include "sums.cuh"
#include "vectors.cuh"

template <typename T, typename F = Statistics<T>>
struct Backward {
  T* dx;
  WeightGradient gradient;
  const T *dy, *ds, *s;  // ds may be null: zeros
  Weight weight;
  const F* rstd;
  int64_t rows, width;
};

// For a block that computes blockDim.y rows at the same time. Each thread writes its sums into its
// row of `columns` (shared memory); add_rows adds these rows up; each thread reads its place again,
// and those with threadIdx.y == 0 then have the block's sums.
template <int kVectors, int kSize>
__device__ void add_rows_of_block(float (&dweight)[kVectors][kSize], float* columns) {
  if (blockDim.y == 1) return;
  const int columns_of_row = kVectors * kSize * blockDim.x;
  float* own = columns + threadIdx.y * columns_of_row + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kVectors * kSize; ++j) own[j * blockDim.x] = dweight[j / kSize][j % kSize];
  add_rows(columns, blockDim.y, columns_of_row);
#pragma unroll
  for (int j = 0; j < kVectors * kSize; ++j) dweight[j / kSize][j % kSize] = own[j * blockDim.x];
}

// Stores a block's sums for the columns from i on: a vector, or the part of it in the row.
template <typename T, bool kIsWhole, int kSize>
__device__ void store_block_sums(const float (&sums)[kSize], WeightGradient to, int i, int width) {
  const int64_t row = blockIdx.x * int64_t(width);
  if constexpr (kIsWhole) {
    if (i < width) store_sums<T>(sums, to, row + i);
  } else {
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float sum[1] = {sums[k]};
      if (i + k >= 0 && i + k < width) store_sums<T>(sum, to, row + i + k);
    }
  }
}

// What a thread has of a row.
template <typename T, int kVectors, int kSize>
struct RowPart {
  Vector<T, kSize> s[kVectors], dy[kVectors], ds[kVectors];
  float scale;
  // Elements of vector v outside of begin to end do not count.
  __device__ void clear(int v, int begin, int end) {
    clear_others(s[v], begin, end);
    clear_others(dy[v], begin, end);
  }
};

// A row has blockDim.x threads in each of gridDim.y blocks, a block has blockDim.y rows at a time.
// It fetches a row ahead: else the memory idles at each row's barrier.
template <typename T, int kVectors, bool kIsWhole>
__global__ void __launch_bounds__(kMostThreads, 1) backward_rows(Backward<T> p) {
  constexpr int kSize = 16 / sizeof(T);
  const int width = static_cast<int>(p.width);
  __shared__ RowSums sums;
  // A block has neighbouring rows; or, as all of its rows must begin at the same place within a
  // vector, every eighth, say: the launcher sees to it that gridDim.x is a multiple of 8.
  const int64_t apart = kIsWhole ? 1 : gridDim.x;
  int64_t row = blockIdx.x * int64_t(kIsWhole ? blockDim.y : 1) + threadIdx.y * apart;
  const int lead = kIsWhole ? 0 : row * width % kSize;
  const int first = (blockIdx.y * blockDim.x + threadIdx.x) * kSize - lead;
  const int step = gridDim.y * blockDim.x * kSize;
  wait_for_previous();
  prepare_row_sums(sums);

  RowPart<T, kVectors, kSize> next;
  const auto fetch = [&](int64_t row) {
    const int rows_left = max(min(p.rows - row, int64_t(kSize)), int64_t(0));  // more do not matter
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = first + v * step;
      const int left = rows_left > 0 && i < width ? rows_left * width - i : 0;  // in the tensor
      next.s[v] = load_some<kSize, kIsWhole>(p.s + row * width + i, left);
      next.dy[v] = load_some<kSize, kIsWhole>(p.dy + row * width + i, left);
      next.ds[v] = load_some<kSize, kIsWhole>(p.ds + row * width + i, p.ds == nullptr ? 0 : left);
    }
    next.scale = row < p.rows ? p.rstd[row] : 0;
  };
  const int64_t row_step = gridDim.x * int64_t(blockDim.y);
  fetch(row);
  float dweight[kVectors][kSize] = {};
  Vector<T, kSize> early_w[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    early_w[v] = load_early<T, kSize, kIsWhole>(p.weight, first + v * step, width);
  }
  wait_for_other_blocks();

  // All rows of a block take the same number of turns, for the barrier's sake.
  int turn = 0;
  for (; row - threadIdx.y * apart < p.rows; row += row_step, ++turn) {
    RowPart<T, kVectors, kSize> now = next;
    fetch(row + row_step);
    float product = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = first + v * step;
      float w[kSize];
      widen<kIsWhole>(w, early_w[v], p.weight, i, width);
      if (!kIsWhole) now.clear(v, -i, width - i);
      for (int k = 0; k < kSize; ++k) {
        const float x = element(now.s[v], k) * now.scale, grad = element(now.dy[v], k);
        product += grad * w[k] * x;
        dweight[v][k] += grad * x;
      }
    }
    const float mean = sum_over_row<true>(product, sums, turn) / width;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = first + v * step;
      float w[kSize], grad[kSize];
      widen<kIsWhole>(w, early_w[v], p.weight, i, width);
      for (int k = 0; k < kSize; ++k) {
        const float x = element(now.s[v], k) * now.scale;
        const float g = element(now.dy[v], k) * w[k];
        grad[k] = now.scale * (g - x * mean) + element(now.ds[v], k);
      }
      const int end = row < p.rows ? width - i : 0;
      store_some<kIsWhole>(p.dx + row * width + i, rounded<T>(grad), -i, end);
    }
  }

  __shared__ float columns[kVectors * kSize * kMostThreads];
  add_rows_of_block(dweight, columns);
  if (threadIdx.y > 0) return;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    store_block_sums<T, kIsWhole>(dweight[v], p.gradient, first + v * step, width);
}

// For any width, in two kernels: first mean(g * x) of each row, by a block; then dx and the sums
// for dweight, by threads that own columns and walk over rows.
template <typename T, int kSize, typename F = Statistics<T>>
__global__ void __launch_bounds__(kMostThreads) backward_means_any(Backward<T> p, F* means) {
  __shared__ F shared[kMostThreads / 32];
  const int64_t start = blockIdx.x * p.width;
  wait_for_previous();
  const F scale = p.rstd[blockIdx.x];
  F product = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x * kSize; i < p.width; i += kMostThreads * kSize) {
    const auto x = load<kSize>(p.s + start + i), grad = load<kSize>(p.dy + start + i);
    F w[kSize];
    widen(w, load_early<T, kSize>(p.weight, i, p.width), p.weight, i, p.width);
    for (int k = 0; k < kSize; ++k) product += element(grad, k) * w[k] * (element(x, k) * scale);
  }
  const F sum = sum_over_block(product, shared);
  if (threadIdx.x == 0) means[blockIdx.x] = sum / p.width;
}

template <typename T, int kSize, typename F = Statistics<T>>
__global__ void __launch_bounds__(kMostThreads) backward_any(Backward<T> p, const F* means) {
  wait_for_previous();
  const int64_t i = (blockIdx.y * int64_t(kMostThreads) + threadIdx.x) * kSize;
  if (i >= p.width) return;
  F w[kSize], dweight[kSize] = {};
  widen(w, load_early<T, kSize>(p.weight, i, p.width), p.weight, i, p.width);
#pragma unroll 4
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t at = row * p.width + i;
    const auto this_s = load<kSize>(p.s + at), this_dy = load<kSize>(p.dy + at);
    const auto this_ds = load<kSize>(p.ds + at, p.ds != nullptr);
    F grad[kSize];
    for (int k = 0; k < kSize; ++k) {
      const F x = element(this_s, k) * p.rstd[row], g = element(this_dy, k);
      dweight[k] += g * x;
      grad[k] = p.rstd[row] * (g * w[k] - x * means[row]) + element(this_ds, k);
    }
    store_rounded(p.dx + at, grad);
  }
  store_sums<T>(dweight, p.gradient, blockIdx.x * p.width + i);
}

// dweight[i] = the sum of partial[0..parts)[i], for 32 columns per block. Each warp adds some of
// the parts; few parts get few warps (with 32, for eight parts of 131072 columns, most had none).
template <typename T, typename F = Statistics<T>>
__global__ void __launch_bounds__(1024)
    add_partial(WeightGradient gradient, const F* partial, int parts, int64_t width) {
  __shared__ F shared[32][32];
  const int64_t i = blockIdx.x * int64_t(32) + threadIdx.x;
  wait_for_previous();
  F sum[1] = {};
#pragma unroll 4
  for (int part = threadIdx.y; part < parts && i < width; part += blockDim.y) {
    sum[0] += partial[part * width + i];
  }
  shared[threadIdx.y][threadIdx.x] = sum[0];
  __syncthreads();
  if (threadIdx.y > 0 || i >= width) return;
#pragma unroll 8
  for (int warp = 1; warp < blockDim.y; ++warp) sum[0] += shared[warp][threadIdx.x];
  store_sums<T>(sum, gradient, i);
}
