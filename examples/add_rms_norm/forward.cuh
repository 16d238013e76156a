// The forward kernels: they read a and b and write s and y. forward_rows moves each byte once: a
// row stays in registers between the sum over it and its use. forward_any takes any width, address
// and dtype, and reads s again for y.
#pragma once
#include "sums.cuh"
#include "vectors.cuh"

constexpr int kFewBlocks = 16;

// Blocks of forward_rows that a multiprocessor should have room for. With one vector per thread as
// many as it has threads for; but on sm_103 rows that are not whole would then spill registers.
template <int kVectors, bool kIsWhole>
constexpr int forward_blocks() {
  constexpr int kAll = kResidentThreads / kMostThreads;
  if (kVectors > 1) return 1;
#if __CUDA_ARCH__ == 1030
  if (!kIsWhole) return kAll - 1;
#endif
  return kAll;
}

// A row has blockDim.x threads in each of gridDim.y blocks, with kVectors times 16 bytes each; a
// block has blockDim.y rows. Some blocks load while others wait for their sums. Rows that are not
// kIsWhole begin and end within a vector: threads take the vectors in which the row has elements.
template <typename T, int kVectors, bool kIsWhole>
__global__ void __launch_bounds__(kMostThreads, (forward_blocks<kVectors, kIsWhole>()))
    forward_rows(T* y, T* s, float* rstd, const T* a, const T* b, Weight weight, float eps,
                 int64_t rows, int width) {
  constexpr int kSize = 16 / sizeof(T);
  constexpr bool kInPairs = kVectors < 4;
  __shared__ RowSums sums;
  const int64_t row = blockIdx.x * int64_t(blockDim.y) + threadIdx.y, start = row * width;
  const int lead = kIsWhole ? 0 : start % kSize;  // how far into a vector the row begins
  const int first = (blockIdx.y * blockDim.x + threadIdx.x) * kSize - lead;
  const int step = gridDim.y * blockDim.x * kSize;
  const int end = row < rows ? width : -kSize;  // past the last row nothing is before it
  // Elements from the row's beginning to the tensor's end; those of kSize rows are enough.
  const int left = kIsWhole ? end : end * static_cast<int>(min(rows - row, int64_t(kSize)));
  // With few rows, as in a model that writes a token, the weight would be what they wait for.
  if constexpr (kIsWhole && kVectors < 4) {
    if (gridDim.x <= kFewBlocks && !weight.is_wide && first < width) {
      start_next_and_prefetch(static_cast<const T*>(weight.data) + first);
    }
  }
  wait_for_previous();
  prepare_row_sums(sums);

  // All loads first, so that they are in flight together.
  Vector<T, kSize> sum[kVectors], other[kVectors], w[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = first + v * step;
    sum[v] = load_some<kSize, kIsWhole>(a + start + i, i < end ? left - i : 0);
    other[v] = load_some<kSize, kIsWhole>(b + start + i, i < end ? left - i : 0);
  }
  constexpr bool kIsEarly = kIsWhole || kVectors < 4;  // else there are too few registers
#pragma unroll
  for (int v = 0; v < kVectors && kIsEarly; ++v) {
    w[v] = load_early<T, kSize, kIsWhole>(weight, first + v * step, width);
  }
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = first + v * step;
    float x[kSize];
    for (int k = 0; k < kSize; ++k) x[k] = element(sum[v], k) + element(other[v], k);
    sum[v] = rounded<T, kInPairs>(x);
    if (!kIsWhole) clear_others(sum[v], -i, end - i);
    for (int k = 0; k < kSize; ++k) squares += element(sum[v], k) * element(sum[v], k);
    store_some<kIsWhole>(s + start + i, sum[v], -i, end - i);
  }
  wait_for_other_blocks();
  const float scale = inverse_root(sum_over_row<kVectors == 1>(squares, sums, 0) / width + eps);
  if (row < rows && first == -lead) rstd[row] = scale;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = first + v * step;
    if (!kIsEarly) w[v] = load_early<T, kSize, kIsWhole>(weight, i, width);
    float x[kSize];
    widen<kIsWhole>(x, w[v], weight, i, width);
    for (int k = 0; k < kSize; ++k) x[k] *= element(sum[v], k) * scale;
    store_some<kIsWhole>(y + start + i, rounded<T, kInPairs>(x), -i, end - i);
  }
}

// A block per row. It reads s again for y, mostly from the L2 cache. Pointers are parameters, as
// only there __restrict__ counts: it lets loads pass the stores before them.
template <typename T, int kSize, typename F = Statistics<T>>
__global__ void __launch_bounds__(kMostThreads)
    forward_any(T* __restrict__ y, T* __restrict__ s, F* rstd, const T* __restrict__ a,
                const T* __restrict__ b, Weight weight, F eps, int64_t width) {
  __shared__ F shared[kMostThreads / 32];
  const int64_t start = blockIdx.x * width;
  wait_for_previous();
  F squares = 0, lost = 0;  // Kahan summation: in a wide row each thread adds many squares
#pragma unroll 4
  for (int64_t i = threadIdx.x * kSize; i < width; i += kMostThreads * kSize) {
    const auto sum = load<kSize>(a + start + i) + load<kSize>(b + start + i);
    F part = -lost;
    for (int k = 0; k < kSize; ++k) part += element(sum, k) * element(sum, k);
    store(s + start + i, sum);
    const F next = squares + part;
    lost = isinf(next) ? F(0) : (next - squares) - part;  // infinity stays what it is, as in torch
    squares = next;
  }
  const F scale = inverse_root(sum_over_block(squares, shared) / width + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
#pragma unroll 4
  for (int64_t i = threadIdx.x * kSize; i < width; i += kMostThreads * kSize) {
    const auto sum = load<kSize>(s + start + i);
    F x[kSize];
    widen(x, load_early<T, kSize>(weight, i, width), weight, i, width);
    for (int k = 0; k < kSize; ++k) x[k] *= element(sum, k) * scale;
    store_rounded(y + start + i, x);
  }
}
