// The launchers: which kernel, how many threads, how many blocks.
#include <algorithm>
#include <initializer_list>
#include <mutex>
#include <numeric>

#include "add_rms_norm.h"
#include "backward.cuh"
#include "common/divide.h"
#include "common/launch.cuh"
#include "forward.cuh"
#include "tiles.cuh"

namespace {

// What the current GPU can do with this library.
struct Gpu {
  int multiprocessors = 0;
  int clusters[5] = {};  // how many clusters of 1, 2, 4, 8, 16 blocks run at the same time
};

const Gpu& current_gpu() {
  static std::mutex mutex;
  static Gpu gpus[128];
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard<std::mutex> lock(mutex);
  Gpu& gpu = gpus[device];
  if (gpu.multiprocessors > 0) return gpu;
  gpu.multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  gpu.clusters[0] = gpu.multiprocessors;
  const auto kernel = backward_rows<__nv_bfloat16, 2, true>;  // no kernel needs more
  if (!has_hopper_code(kernel)) return gpu;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  for (int k = 1; k < 5; ++k) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {1, 1u << k, 1};
    cudaLaunchConfig_t config = {dim3(1, 1u << k), kMostThreads, 0, nullptr, &cluster, 1};
    const cudaError_t error = cudaOccupancyMaxActiveClusters(&gpu.clusters[k], kernel, &config);
    if (error == cudaSuccess) continue;
    cudaGetLastError();  // a GPU that refuses 16 blocks: that is no error of the caller's
    break;
  }
  return gpu;
}

struct Grid {
  int64_t x, y = 1;
  bool is_cluster = false;  // the blocks along y are one cluster
};

template <typename Kernel, typename... Arguments>
const char* start(Kernel kernel, Grid grid, dim3 threads, cudaStream_t stream,
                  Arguments... arguments) {
  if (grid.x == 0) return nullptr;  // a grid of no blocks is an error
  if (grid.x >= int64_t(1) << 31 || grid.y >= 65536) return "too many rows or columns";
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  const dim3 cluster(1, grid.is_cluster ? blocks.y : 1);
  const bool is_early = current_gpu().clusters[1] > 0;  // sm_90 and later
  return launch(kernel, {blocks, threads, 0, cluster, is_early}, stream, arguments...);
}

// How the rows lie in vectors of 16 bytes.
struct Layout {
  int64_t vectors;  // that a row needs, wherever it begins; 0: the pointers are not aligned
  bool is_whole;    // each row begins and ends where a vector does
};

Layout layout(int64_t width, int size, std::initializer_list<const void*> pointers,
              const void* weight) {
  uintptr_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  if (bits % 16 != 0) return {0, false};
  bits |= reinterpret_cast<uintptr_t>(weight) | (width * size);
  if (bits % 16 == 0) return {width * size / 16, true};
  return {divide_up((width - 1) * size, 16) + 1, false};
}

// How a row is spread over threads: over the smallest cluster in which a block needs at most
// wanted_threads, else the largest one. blocks == 0: it has no vectors, or does not fit.
struct Spread {
  int threads = 0, blocks = 0;
};

Spread spread(int64_t vectors, int vectors_per_thread, int wanted_threads) {
  Spread found;
  for (int k = 0; k < 5 && vectors > 0 && current_gpu().clusters[k] > 0; ++k) {
    const auto threads = 32 * divide_up(vectors, int64_t(32 * vectors_per_thread) << k);
    if (threads <= kMostThreads) found = {static_cast<int>(threads), 1 << k};
    while (found.threads / 2 * vectors_per_thread >= vectors) found.threads /= 2;  // below a warp
    if (threads <= wanted_threads) break;
  }
  return found;
}

// Tiles, for short rows that end within a vector (tiles.cuh). rows == 0: no such rows, or few.
struct Tile {
  int rows = 0;
  dim3 threads;
  int64_t blocks = 0;
};

// Takes as many rows as fit wanted_threads, if some do; a multiprocessor has room for
// resident_threads. Rows of more vectors than most_vectors are as fast by themselves.
Tile tile(int64_t rows, int64_t width, int size, const Layout& layout, int most_vectors,
          int wanted_threads, int resident_threads) {
  const int64_t in_vector = 16 / size, unit = in_vector / std::gcd(width, in_vector);
  const int64_t vectors = unit * width / in_vector;  // of the fewest rows that end with a vector
  const bool is_short = layout.vectors <= most_vectors && vectors <= kMostThreads;
  if (layout.vectors == 0 || width < in_vector || !is_short) return {};
  const int multiprocessors = current_gpu().multiprocessors;
  const int64_t fitting = std::max<int64_t>(wanted_threads / vectors, 1);
  const int64_t wanted = std::max<int64_t>(divide_up(rows, unit * multiprocessors), 1);
  const int64_t units = std::min(fitting, wanted);
  if (2 * rows < units * unit * multiprocessors) return {};
  const int threads = 32 * divide_up(units * vectors, 32);
  int lanes = 32;  // that add up a row
  while (lanes > 1 && lanes * units * unit > threads) lanes /= 2;
  const int64_t resident = multiprocessors * (resident_threads / threads);
  return {static_cast<int>(units * unit), dim3(lanes, threads / lanes),
          std::min(divide_up(rows, units * unit), resident)};
}

template <typename T, bool kIsWhole>
auto forward_kernel(int vectors_per_thread) {
  if (vectors_per_thread == 1) return forward_rows<T, 1, kIsWhole>;
  if (vectors_per_thread == 2) return forward_rows<T, 2, kIsWhole>;
  return forward_rows<T, 4, kIsWhole>;
}

template <typename T>
const char* run(const RmsForward& x, cudaStream_t stream) {
  const Layout rows = layout(x.width, sizeof(T), {x.y, x.s, x.a, x.b}, x.weight);
  const Weight weight = {x.weight, x.weight_dtype != x.dtype};
  if constexpr (sizeof(T) < 8) {
    const Tile t = tile(x.rows, x.width, sizeof(T), rows, rows.is_whole ? 0 : 48, 256,
                        kForwardTiles * kMostThreads);
    if (t.rows > 0) {
      return start(forward_tiles<T>, Grid{t.blocks}, t.threads, stream, x.y, x.s, x.rstd, x.a, x.b,
                   weight, x.eps, x.rows, x.width, t.rows);
    }
    // One vector per thread is best up to 512 threads; four in blocks of 128 threads for wide rows.
    const int64_t vectors = rows.vectors;
    const int per_thread = vectors <= kMostThreads ? 1 : vectors <= 2 * kMostThreads ? 2 : 4;
    const Spread row = spread(vectors, per_thread, per_thread == 4 ? 128 : kMostThreads);
    if (row.blocks > 0) {
      const auto kernel = rows.is_whole ? forward_kernel<T, true>(per_thread)
                                        : forward_kernel<T, false>(per_thread);
      const int rows_per_block = row.blocks == 1 ? std::max(128 / row.threads, 1) : 1;
      const Grid grid = {divide_up(x.rows, rows_per_block), row.blocks, true};
      return start(kernel, grid, dim3(row.threads, rows_per_block), stream, x.y, x.s, x.rstd, x.a,
                   x.b, weight, x.eps, x.rows, x.width);
    }
  }
  const auto kernel = rows.is_whole ? forward_any<T, 16 / sizeof(T)> : forward_any<T, 1>;
  return start(kernel, Grid{x.rows}, kMostThreads, stream, x.y, x.s, x.rstd, x.a, x.b, weight,
               x.eps, x.width);
}

struct Plan {
  bool is_whole;
  int vectors_per_thread;  // 0: by the kernels for any width
  Grid grid;               // each block along x leaves a row of sums
  dim3 threads = kMostThreads;
  int tile_rows = 0;  // > 0: by tiles
};

// 512 threads per block, two vectors per thread, one block per multiprocessor: that has the bytes
// in flight that the memory wants, with the fewest partial sums. With few rows, each has a block of
// its own and twice the threads.
Plan plan(const RmsBackward& x) {
  const Gpu& gpu = current_gpu();
  const int size = x.dtype == RMS_FLOAT64 ? 8 : x.dtype == RMS_FLOAT32 ? 4 : 2;
  const Layout rows = layout(x.width, size, {x.dx, x.dy, x.ds, x.s}, x.weight);
  if (size < 8) {
    const Tile t =
        tile(x.rows, x.width, size, rows, rows.is_whole ? 8 : 48, kMostThreads, 2 * kMostThreads);
    if (t.rows > 0) return {rows.is_whole, 1, {t.blocks}, t.threads, t.rows};
  }
  const int64_t in_registers = size < 8 ? rows.vectors : 0;
  Spread row = spread(in_registers, 1, kMostThreads);
  int per_thread = 1, rows_per_block = std::max(32 / std::max(row.threads, 1), 1);
  if (x.rows > gpu.multiprocessors || row.blocks == 0 || row.blocks > 8) {
    row = spread(in_registers, 2, kMostThreads);
    per_thread = 2;
    rows_per_block = kMostThreads / std::max(row.threads, 1);
  }
  if (row.blocks > 0) {
    const int64_t clusters = gpu.clusters[__builtin_ctz(row.blocks)];
    int64_t blocks = std::min(divide_up(x.rows, rows_per_block), clusters);
    // Every eighth row begins at the same place within a vector: a block's rows are so far apart.
    if (!rows.is_whole && blocks < x.rows) blocks = std::max<int64_t>(blocks / 8 * 8, 8);
    return {
        rows.is_whole, per_thread, {blocks, row.blocks, true}, dim3(row.threads, rows_per_block)};
  }
  const int in_vectors = kMostThreads * 16 / size;  // columns of a block that loads vectors
  const int64_t columns = divide_up(x.width, rows.is_whole ? in_vectors : kMostThreads);
  const int64_t parts = divide_up(4 * gpu.multiprocessors, divide_up(x.width, in_vectors));
  return {rows.is_whole, 0, {std::min(x.rows, parts), columns}};
}

template <typename T>
const char* run(const RmsBackward& x, cudaStream_t stream) {
  using F = Statistics<T>;
  constexpr int kSize = 16 / sizeof(T);
  const auto [is_whole, vectors_per_thread, grid, threads, tile_rows] = plan(x);
  F *scratch = static_cast<F*>(x.scratch), *means = scratch + grid.x * x.width;
  const WeightGradient<F> sums = {x.dweight, scratch, x.weight_dtype != x.dtype};
  const Weight weight = {x.weight, sums.is_wide};
  const char* error = nullptr;
  if (vectors_per_thread == 0) {
    const auto find_means = is_whole ? backward_means_any<T, kSize> : backward_means_any<T, 1>;
    const auto kernel = is_whole ? backward_any<T, kSize> : backward_any<T, 1>;
    error =
        start(find_means, Grid{x.rows}, threads, stream, means, x.dy, x.s, weight, x.rstd, x.width);
    if (error != nullptr) return error;
    error = start(kernel, grid, threads, stream, x.dx, sums, x.dy, x.ds, x.s, weight, x.rstd, means,
                  x.rows, x.width);
  } else if constexpr (sizeof(T) < 8) {
    if (tile_rows > 0) {
      error = start(backward_tiles<T>, grid, threads, stream, x.dx, sums, x.dy, x.ds, x.s, weight,
                    x.rstd, x.rows, x.width, tile_rows);
    } else {
      const bool is_one = vectors_per_thread == 1;
      const auto whole = is_one ? backward_rows<T, 1, true> : backward_rows<T, 2, true>;
      const auto other = is_one ? backward_rows<T, 1, false> : backward_rows<T, 2, false>;
      error = start(is_whole ? whole : other, grid, threads, stream, x.dx, sums, x.dy, x.ds, x.s,
                    weight, x.rstd, x.rows, x.width);
    }
  }
  if (error != nullptr || grid.x == 1) return error;
  const auto parts = static_cast<unsigned>(std::clamp<int64_t>(grid.x, 1, 32));
  return start(add_partial<T>, Grid{divide_up(x.width, 32)}, dim3(32, parts), stream, sums, grid.x,
               x.width);
}

template <typename Arguments>
const char* run_dtype(const Arguments& x, cudaStream_t stream) {
  if (x.dtype == RMS_FLOAT32) return run<float>(x, stream);
  if (x.dtype == RMS_FLOAT64) return run<double>(x, stream);
  if (x.dtype == RMS_FLOAT16) return run<__half>(x, stream);
  return run<__nv_bfloat16>(x, stream);
}

}  // namespace

const char* launch_add_rms_norm(const RmsForward& x, CUstream_st* s) { return run_dtype(x, s); }
const char* launch_add_rms_norm(const RmsBackward& x, CUstream_st* s) { return run_dtype(x, s); }
int64_t rms_scratch_size(const RmsBackward& x) { return plan(x).grid.x * x.width + x.rows; }
