// The backward kernels: they read s, dy and ds and write dx. With x = s * rstd and g = dy * weight:
//     dx = rstd * (g - x * mean(g * x)) + ds          dweight = the sum over all rows of dy * x
// Blocks are persistent: each walks over rows, keeps the sums for its columns in registers, and
// writes them once. add_partial adds the blocks' sums in a fixed order, so every run gives the same
// bits; with atomics the order would vary.
#pragma once
#include "sums.cuh"
#include "vectors.cuh"

// A row has blockDim.x threads in each of gridDim.y blocks, a block has blockDim.y rows at a time.
// kAhead: without it the memory idles at each row's barrier (6 to 22% slower, 16384 rows, H200).
template <typename T, int kVectors, bool kAhead = true>
__global__ void __launch_bounds__(kMostThreads, 1)
    backward_rows(T* dx, WeightGradient<float> gradient, const T* dy, const T* ds, const T* s,
                  Weight weight, const float* rstd, int64_t rows, int width) {
  constexpr int kSize = 16 / sizeof(T);
  __shared__ RowSums sums;
  __shared__ float columns[kVectors * kSize * kMostThreads / 2];  // of two groups or more
  const int first = (blockIdx.y * blockDim.x + threadIdx.x) * kSize;
  const int step = gridDim.y * blockDim.x * kSize;
  wait_for_previous();
  prepare_row_sums(sums);

  Vector<T, kSize> next_s[kVectors], next_dy[kVectors], next_ds[kVectors];
  float next_scale;
  const auto fetch = [&](int64_t row) {
    for (int v = 0; v < kVectors; ++v) {
      const int i = first + v * step;
      const bool is_there = row < rows && i < width;
      next_s[v] = load<kSize>(s + row * width + i, is_there);
      next_dy[v] = load<kSize>(dy + row * width + i, is_there);
      next_ds[v] = load<kSize>(ds + row * width + i, is_there && ds != nullptr);
    }
    next_scale = row < rows ? rstd[row] : 0;
  };
  int64_t row = blockIdx.x * int64_t(blockDim.y) + threadIdx.y;
  const int64_t row_step = gridDim.x * int64_t(blockDim.y);
  if (kAhead) fetch(row);
  float dweight[kVectors][kSize] = {};
  Vector<T, kSize> early_w[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    early_w[v] = load_early<T, kSize>(weight, first + v * step, width);
  }
  wait_for_cluster();

  // All rows of a block take the same number of turns, for the barrier's sake.
  int turn = 0;
  for (; row - threadIdx.y < rows; row += row_step, ++turn) {
    if (!kAhead) fetch(row);
    Vector<T, kSize> this_s[kVectors], this_dy[kVectors], this_ds[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      this_s[v] = next_s[v], this_dy[v] = next_dy[v], this_ds[v] = next_ds[v];
    }
    const float scale = next_scale;
    if (kAhead) fetch(row + row_step);

    float product = 0;
    for (int v = 0; v < kVectors; ++v) {
      float w[kSize];
      widen(w, early_w[v], weight, first + v * step, width);
      for (int k = 0; k < kSize; ++k) {
        const float x = element(this_s[v], k) * scale, grad = element(this_dy[v], k);
        product += grad * w[k] * x;
        dweight[v][k] += grad * x;
      }
    }
    const float mean = sum_over_row(product, sums, turn) / width;
    for (int v = 0; v < kVectors; ++v) {
      const int i = first + v * step;
      float w[kSize], grad[kSize];
      widen(w, early_w[v], weight, i, width);
      for (int k = 0; k < kSize; ++k) {
        const float x = element(this_s[v], k) * scale;
        const float g = element(this_dy[v], k) * w[k];
        grad[k] = scale * (g - x * mean) + element(this_ds[v], k);
      }
      if (row < rows && i < width) store_rounded(dx + row * width + i, grad);
    }
  }

  // The sums of the block's groups: the upper half hands its sums to the lower half, and so on.
  for (int groups = blockDim.y, half; groups > 1; groups = half) {
    half = (groups + 1) / 2;
    const int giver = threadIdx.y >= half ? threadIdx.y - half : threadIdx.y;
    float* sums_of_row = columns + giver * kVectors * kSize * blockDim.x + threadIdx.x;
    __syncthreads();
    for (int j = 0; j < kVectors * kSize; ++j) {
      const float sum = dweight[j / kSize][j % kSize];
      if (threadIdx.y >= half && threadIdx.y < groups) sums_of_row[j * blockDim.x] = sum;
    }
    __syncthreads();
    for (int j = 0; j < kVectors * kSize; ++j) {
      float& sum = dweight[j / kSize][j % kSize];
      if (threadIdx.y + half < groups) sum += sums_of_row[j * blockDim.x];
    }
  }
  if (threadIdx.y > 0) return;
  for (int v = 0; v < kVectors; ++v) {
    const int i = first + v * step;
    if (i < width) store_sums<T>(dweight[v], gradient, blockIdx.x, gridDim.x, width, i);
  }
}

// For any width, in two kernels: first mean(g * x) of each row, by a block; then dx and the sums
// for dweight, by threads that own columns and walk over rows.
template <typename T, int kSize, typename F = Statistics<T>>
__global__ void __launch_bounds__(kMostThreads)
    backward_means_any(F* means, const T* dy, const T* s, Weight weight, const F* rstd,
                       int64_t width) {
  __shared__ F shared[kMostThreads / 32];
  const int64_t start = blockIdx.x * width;
  wait_for_previous();
  const F scale = rstd[blockIdx.x];
  F product = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x * kSize; i < width; i += kMostThreads * kSize) {
    const auto x = load<kSize>(s + start + i), grad = load<kSize>(dy + start + i);
    F w[kSize];
    widen(w, load_early<T, kSize>(weight, i, width), weight, i, width);
    for (int k = 0; k < kSize; ++k) product += element(grad, k) * w[k] * (element(x, k) * scale);
  }
  const F sum = sum_over_block(product, shared);
  if (threadIdx.x == 0) means[blockIdx.x] = sum / width;
}

template <typename T, int kSize, typename F = Statistics<T>>
__global__ void __launch_bounds__(kMostThreads)
    backward_any(T* __restrict__ dx, WeightGradient<F> gradient, const T* __restrict__ dy,
                 const T* __restrict__ ds, const T* __restrict__ s, Weight weight,
                 const F* __restrict__ rstd, const F* __restrict__ means, int64_t rows,
                 int64_t width) {
  wait_for_previous();
  const int64_t i = (blockIdx.y * int64_t(kMostThreads) + threadIdx.x) * kSize;
  if (i >= width) return;
  F w[kSize], dweight[kSize] = {};
  widen(w, load_early<T, kSize>(weight, i, width), weight, i, width);
#pragma unroll 4
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t at = row * width + i;
    const auto this_s = load<kSize>(s + at), this_dy = load<kSize>(dy + at);
    const auto this_ds = load<kSize>(ds + at, ds != nullptr);
    F grad[kSize];
    for (int k = 0; k < kSize; ++k) {
      const F x = element(this_s, k) * rstd[row], g = element(this_dy, k);
      dweight[k] += g * x;
      grad[k] = rstd[row] * (g * w[k] - x * means[row]) + element(this_ds, k);
    }
    store_rounded(dx + at, grad);
  }
  store_sums<T>(dweight, gradient, blockIdx.x, gridDim.x, width, i);
}

// dweight[i] = the sum of partial[0..parts)[i], for 32 columns per block. First the 32 threads of a
// column are in 32 warps, so that a warp reads neighbours; then in one warp, for its shuffles.
template <typename T, typename F = Statistics<T>>
__global__ void __launch_bounds__(1024)
    add_partial(WeightGradient<F> gradient, int parts, int64_t width) {
  __shared__ F shared[32][33];  // 33: with 32, reading a column would hit one bank 32 times
  const int64_t first = blockIdx.x * int64_t(32);
  wait_for_previous();
  F sum = 0;
  if (first + threadIdx.x < width) {
    for (int part = threadIdx.y; part < parts; part += 32) {
      sum += gradient.partial[part * width + first + threadIdx.x];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const F total[1] = {sum_over_warp(shared[threadIdx.x][threadIdx.y])};
  const int64_t i = first + threadIdx.y;
  if (threadIdx.x == 0 && i < width) store_sums<T>(total, gradient, 0, 1, width, i);
}
