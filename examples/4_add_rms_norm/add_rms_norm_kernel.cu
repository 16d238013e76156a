// The launchers: which kernel, how many threads, how many blocks. Figures in the comments come from
// an H200 in bfloat16, with inputs that are not in its L2 cache.
#include <algorithm>
#include <initializer_list>
#include <mutex>

#include "add_rms_norm.h"
#include "backward.cuh"
#include "forward.cuh"

namespace {

// What the current GPU can do with this library. A library that was compiled for older GPUs has no
// clusters and no overlap in it, even if the driver has compiled it for a newer one.
struct Gpu {
  int multiprocessors = 0;
  bool overlaps = false;
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
  cudaDeviceGetAttribute(&gpu.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  gpu.clusters[0] = gpu.multiprocessors;
  const auto kernel = backward_rows<__nv_bfloat16, 2>;  // no kernel needs more
  cudaFuncAttributes attributes = {};
  cudaFuncGetAttributes(&attributes, kernel);
  gpu.overlaps = attributes.ptxVersion >= 90;
  if (!gpu.overlaps) return gpu;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  for (int k = 1; k < 5; ++k) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {1, 1u << k, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1, 1u << k);
    config.blockDim = kMostThreads;
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaOccupancyMaxActiveClusters(&gpu.clusters[k], kernel, &config);
  }
  cudaGetLastError();  // a GPU that refuses 16 blocks leaves an error and 0 clusters
  return gpu;
}

struct Grid {
  int64_t x, y = 1;
  bool is_cluster = false;  // the blocks along y are one cluster
};

// Converts each argument to the kernel's parameter: void* to T*, double to float.
template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), Grid grid, dim3 threads, cudaStream_t stream,
                   Arguments... arguments) {
  if (grid.x == 0) return nullptr;  // a grid of no blocks is an error
  if (grid.x >= int64_t(1) << 31 || grid.y >= 65536) return "too many rows or columns";
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = attributes;
  if (current_gpu().overlaps) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.is_cluster && grid.y > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {1, config.gridDim.y, 1};
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // or torch would report it again, at its next call
  return cudaGetErrorString(error);
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many vectors of 16 bytes a row has; 0 if it ends within one, or if a pointer is not aligned.
int64_t whole_vectors(int64_t row_bytes, std::initializer_list<const void*> pointers) {
  uintptr_t bits = row_bytes;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  return bits % 16 == 0 ? row_bytes / 16 : 0;
}

// How a row is spread over threads; blocks == 0: it has no whole vectors, or does not fit.
struct Spread {
  int threads = 0, blocks = 0;
};

// The smallest cluster in which a block needs at most wanted_threads, else the largest one.
Spread spread(int64_t vectors, int vectors_per_thread, int wanted_threads) {
  Spread found;
  for (int k = 0; k < 5 && vectors > 0 && current_gpu().clusters[k] > 0; ++k) {
    const int64_t warps = divide_up(vectors, int64_t(32 * vectors_per_thread) << k);
    if (warps * 32 <= kMostThreads) found = {static_cast<int>(warps * 32), 1 << k};
    if (warps * 32 <= wanted_threads) break;
  }
  return found;
}

template <typename T>
const char* run(const RmsForward& x, cudaStream_t stream) {
  const int64_t vectors = whole_vectors(x.width * sizeof(T), {x.y, x.s, x.a, x.b, x.weight});
  const Weight weight = {x.weight, x.weight_dtype != x.dtype};
  if constexpr (sizeof(T) < 8) {
    // One vector per thread is best up to 512 threads. Wide rows: four vectors for each of 128
    // threads take 129 us for 2048 rows of 32768, 256 us for 65536; 256 threads 131 and 260 us; two
    // vectors 133 and 277 us.
    const int per_thread = vectors <= kMostThreads ? 1 : vectors <= 2 * kMostThreads ? 2 : 4;
    const auto kernel = per_thread == 1   ? forward_rows<T, 1>
                        : per_thread == 2 ? forward_rows<T, 2>
                                          : forward_rows<T, 4>;
    const Spread row = spread(vectors, per_thread, per_thread == 4 ? 128 : kMostThreads);
    if (row.blocks > 0) {
      const int rows_per_block = row.blocks == 1 ? std::max(128 / row.threads, 1) : 1;
      const Grid grid = {divide_up(x.rows, rows_per_block), row.blocks, true};
      return launch(kernel, grid, dim3(row.threads, rows_per_block), stream, x.y, x.s, x.rstd, x.a,
                    x.b, weight, x.eps, x.rows, x.width);
    }
  }
  const auto kernel = vectors > 0 ? forward_any<T, 16 / sizeof(T)> : forward_any<T, 1>;
  return launch(kernel, Grid{x.rows}, kMostThreads, stream, x.y, x.s, x.rstd, x.a, x.b, weight,
                x.eps, x.width);
}

// How the gradient is computed. row.blocks == 0: by the kernels for any width.
struct Plan {
  Spread row;
  int64_t vectors;  // of a row
  int vectors_per_thread = 2;
  int64_t parts;       // blocks along x, each of which leaves a row of sums
  int64_t groups = 1;  // rows of a block
};

// 512 threads per block, two vectors per thread, one block per multiprocessor: that has the bytes
// in flight that the memory wants, with the fewest partial sums. With few rows, each has a block of
// its own and twice the threads: 3.6 instead of 4.7 us for 64 rows of 1024.
Plan plan(const RmsBackward& x) {
  const Gpu& gpu = current_gpu();
  const int size = x.dtype == RMS_FLOAT64 ? 8 : x.dtype == RMS_FLOAT32 ? 4 : 2;
  Plan made;
  made.vectors = whole_vectors(x.width * size, {x.dx, x.dy, x.ds, x.s, x.weight});
  const int64_t vectors = size == 8 ? 0 : made.vectors;  // backward_rows is not for float64
  made.row = spread(vectors, 1, kMostThreads);
  if (x.rows <= gpu.multiprocessors && made.row.blocks > 0 && made.row.blocks <= 8) {
    made.vectors_per_thread = 1;
  } else {
    made.row = spread(vectors, 2, kMostThreads);
    if (made.row.blocks > 0) made.groups = kMostThreads / made.row.threads;
  }
  if (made.row.blocks > 0) {
    const int64_t clusters = gpu.clusters[__builtin_ctz(made.row.blocks)];
    made.parts = std::min(divide_up(x.rows, made.groups), clusters);
  } else {
    const int64_t columns = divide_up(x.width, kMostThreads * 16 / size);
    made.parts = std::min(x.rows, divide_up(4 * gpu.multiprocessors, columns));
  }
  return made;
}

template <typename T>
const char* run(const RmsBackward& x, cudaStream_t stream) {
  using F = Statistics<T>;
  constexpr int kSize = 16 / sizeof(T);
  const Plan made = plan(x);
  const int64_t parts = made.parts;
  F *scratch = static_cast<F*>(x.scratch), *means = scratch + parts * x.width;
  const WeightGradient<F> sums = {x.dweight, scratch, x.weight_dtype != x.dtype};
  const Weight weight = {x.weight, sums.is_wide};
  const char* error = nullptr;
  if (made.row.blocks == 0) {
    const bool is_whole = made.vectors > 0;
    const auto find_means = is_whole ? backward_means_any<T, kSize> : backward_means_any<T, 1>;
    const auto kernel = is_whole ? backward_any<T, kSize> : backward_any<T, 1>;
    const Grid grid = {parts, divide_up(x.width, kMostThreads * (is_whole ? kSize : 1))};
    error = launch(find_means, Grid{x.rows}, kMostThreads, stream, means, x.dy, x.s, weight, x.rstd,
                   x.width);
    if (error != nullptr) return error;
    error = launch(kernel, grid, kMostThreads, stream, x.dx, sums, x.dy, x.ds, x.s, weight, x.rstd,
                   means, x.rows, x.width);
  } else if constexpr (sizeof(T) < 8) {
    const auto kernel = made.vectors_per_thread == 1 ? backward_rows<T, 1> : backward_rows<T, 2>;
    const dim3 threads(made.row.threads, static_cast<unsigned>(made.groups));
    error = launch(kernel, Grid{parts, made.row.blocks, true}, threads, stream, x.dx, sums, x.dy,
                   x.ds, x.s, weight, x.rstd, x.rows, x.width);
  }
  if (error != nullptr || parts == 1) return error;
  return launch(add_partial<T>, Grid{divide_up(x.width, 32)}, dim3(32, 32), stream, sums, parts,
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

const char* launch_add_rms_norm(const RmsForward& x, CUstream_st* stream) {
  return run_dtype(x, stream);
}

const char* launch_add_rms_norm(const RmsBackward& x, CUstream_st* stream) {
  return run_dtype(x, stream);
}

int64_t rms_scratch_size(const RmsBackward& x) { return plan(x).parts * x.width + x.rows; }
