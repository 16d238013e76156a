// Short rows, and rows that end within a vector: a block takes a tile, neighbouring rows that
// together end where a vector of 16 bytes ends, and moves it as one piece of memory. So a vector
// has elements of one row or of two. Each thread has one vector, at the same place in every tile
// over which its block walks, and thus the same columns.
#pragma once
#include "backward.cuh"
#include "forward.cuh"

// Blocks of kMostThreads that a multiprocessor should have room for: ptxas limits the registers.
// (Not for the host, which sees one value for all GPUs: it asks how many blocks fit.)
#if __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
constexpr int kForwardTiles = 2;  // with three, there would be too few registers
#else
constexpr int kForwardTiles = kResidentThreads * 3 / 4 / kMostThreads;
#endif

struct TileSums {
  float2 shares[kMostThreads];  // each vector's share of the row in which it begins, and the next
  float of_rows[kMostThreads + 1];
};

// Where a thread's vector is in the tile.
template <int kSize>
struct TileVector {
  int width, tile_rows;
  int i = (threadIdx.y * blockDim.x + threadIdx.x) * kSize;
  bool is_there = i < tile_rows * width;
  int row = min(i / width, tile_rows - 1);             // in which it begins
  int own = is_there ? (row + 1) * width - i : kSize;  // elements of that row; then come the next's

  // How many elements there are from this place to the end of the tile, or of the tensor.
  __device__ int count(int64_t rows_left) const {
    return static_cast<int>(min(rows_left, int64_t(tile_rows))) * width - i;
  }

  // In flight together with the tile.
  template <typename T>
  __device__ void load_weights(float (&w)[kSize], Weight weight) const {
    const auto column = [&](int k) { return k < own ? width - own + k : k - own; };
    if (weight.is_wide) {
      for (int k = 0; k < kSize; ++k) w[k] = static_cast<const float*>(weight.data)[column(k)];
    } else {
      for (int k = 0; k < kSize; ++k)
        w[k] = to_float(static_cast<const T*>(weight.data)[column(k)]);
    }
  }

  // Returns what finish(row, sum) gave for the two rows of this vector. blockDim.x threads, a power
  // of two, add up a row.
  template <typename Finish>
  __device__ float2 sum_over_rows(TileSums& sums, float2 share, Finish finish) const {
    sums.shares[i / kSize] = share;
    __syncthreads();
    // The threads of a warp take the same turns, as they exchange their sums.
    for (int j = threadIdx.y; __any_sync(~0u, j < tile_rows); j += blockDim.y) {
      const int begin = j * width, end = begin + width;
      float sum = 0;
      if (j < tile_rows) {
        for (int v = begin / kSize + threadIdx.x; v * kSize < end; v += blockDim.x) {
          sum += v * kSize >= begin ? sums.shares[v].x : sums.shares[v].y;
        }
      }
      sum = sum_over_warp(sum, blockDim.x);
      if (threadIdx.x == 0 && j < tile_rows) sums.of_rows[j] = finish(j, sum);
    }
    __syncthreads();
    return {sums.of_rows[row], sums.of_rows[row + 1]};
  }
};

template <typename T>
__global__ void __launch_bounds__(kMostThreads, kForwardTiles)
    forward_tiles(T* y, T* s, float* rstd, const T* a, const T* b, Weight weight, float eps,
                  int64_t rows, int width, int tile_rows) {
  constexpr int kSize = 16 / sizeof(T);
  __shared__ TileSums sums;
  const TileVector<kSize> vector = {width, tile_rows};
  wait_for_previous();
  const int64_t step = gridDim.x * int64_t(tile_rows);
  int64_t row = blockIdx.x * int64_t(tile_rows), at = row * width + vector.i;
  Vector<T, kSize> sum, other;
  const auto fetch = [&] {
    sum = load_some<kSize>(a + at, vector.count(rows - row));
    other = load_some<kSize>(b + at, vector.count(rows - row));
  };
  fetch();
  float w[kSize];
  vector.template load_weights<T>(w, weight);
  for (; row < rows; row += step, at += step * width) {
    if (row >= step) fetch();  // not the first tile
    const int count = vector.count(rows - row);
    sum = sum + other;
    float2 share = {0, 0};
    for (int k = 0; k < kSize; ++k) {
      (k < vector.own ? share.x : share.y) += element(sum, k) * element(sum, k);
    }
    store_some(s + at, sum, 0, count);
    const auto finish = [&](int j, float squares) {
      const float scale = inverse_root(squares / width + eps);
      if (row + j < rows) rstd[row + j] = scale;
      return scale;
    };
    const float2 scale = vector.sum_over_rows(sums, share, finish);
    // Compared anew: the results of the comparisons above would take registers.
    const int own = static_cast<int>(keep(vector.own));
    float x[kSize];
    for (int k = 0; k < kSize; ++k) {
      x[k] = element(sum, k) * (k < own ? scale.x : scale.y) * w[k];
    }
    store_some(y + at, rounded<T>(x), 0, count);
  }
}

template <typename T>
__global__ void __launch_bounds__(kMostThreads, 2) backward_tiles(Backward<T> p, int tile_rows) {
  constexpr int kSize = 16 / sizeof(T);
  const int width = static_cast<int>(p.width);
  __shared__ TileSums sums;
  __shared__ float columns[kSize * kMostThreads];
  const TileVector<kSize> vector = {width, tile_rows};
  wait_for_previous();
  float w[kSize], dweight[kSize] = {};
  vector.template load_weights<T>(w, p.weight);
  const int64_t step = gridDim.x * int64_t(tile_rows);
  int64_t first_row = blockIdx.x * int64_t(tile_rows);
  for (; first_row < p.rows; first_row += step) {
    const int64_t at = first_row * width + vector.i;
    const int count = vector.count(p.rows - first_row);
    const int64_t row = first_row + vector.row;
    const auto this_s = load_some<kSize>(p.s + at, count),
               this_dy = load_some<kSize>(p.dy + at, count);
    const auto this_ds = load_some<kSize>(p.ds + at, p.ds != nullptr ? count : 0);
    const float2 scale = {row < p.rows ? p.rstd[row] : 0, row + 1 < p.rows ? p.rstd[row + 1] : 0};
    float2 share = {0, 0};
    for (int k = 0; k < kSize; ++k) {
      const float x = element(this_s, k) * (k < vector.own ? scale.x : scale.y);
      const float grad = element(this_dy, k);
      (k < vector.own ? share.x : share.y) += grad * w[k] * x;
      dweight[k] += grad * x;
    }
    const auto finish = [&](int, float product) { return product / width; };
    const float2 mean = vector.sum_over_rows(sums, share, finish);
    const int end = static_cast<int>(keep(vector.own));
    float grad[kSize];
    for (int k = 0; k < kSize; ++k) {
      const float own = k < end ? scale.x : scale.y;
      const float x = element(this_s, k) * own, g = element(this_dy, k) * w[k];
      grad[k] = own * (g - x * (k < end ? mean.x : mean.y)) + element(this_ds, k);
    }
    store_some(p.dx + at, rounded<T>(grad), 0, count);
  }

  for (int k = 0; k < kSize; ++k) columns[vector.i + k] = dweight[k];
  add_rows(columns, tile_rows, width);
  for (int i = vector.i / kSize; i < width; i += blockDim.x * blockDim.y) {
    const float sum[1] = {columns[i]};
    store_sums<T>(sum, p.gradient, blockIdx.x * p.width + i);
  }
}
