// The launchers: which kernel, how many threads, how many blocks. Figures in the comments come from
// an H200 in bfloat16, with inputs that are not in its L2 cache.
#include <algorithm>
#include <initializer_list>
#include <mutex>
#include <type_traits>

#include "add_rms_norm.h"
#include "backward.cuh"
#include "forward.cuh"

namespace {

// What the current GPU can do with this library. A library that was compiled for older GPUs has no
// clusters and no overlap in it, even if the driver has compiled it for a newer one.
struct Gpu {
  bool known = false, overlaps = false;
  int multiprocessors = 0;
  int clusters[5] = {};  // how many clusters of 1, 2, 4, 8, 16 blocks run at the same time
};

void ask(Gpu& gpu, int device) {
  gpu.known = true;
  cudaDeviceGetAttribute(&gpu.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  gpu.clusters[0] = gpu.multiprocessors;
  const auto kernel = backward_rows<__nv_bfloat16, 2>;  // no kernel needs more
  cudaFuncAttributes attributes = {};
  cudaFuncGetAttributes(&attributes, kernel);
  gpu.overlaps = attributes.ptxVersion >= 90;
  if (!gpu.overlaps) return;
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
}

const Gpu& current_gpu() {
  static std::mutex mutex;
  static Gpu gpus[128];
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard<std::mutex> lock(mutex);
  if (!gpus[device].known) ask(gpus[device], device);
  return gpus[device];
}

struct Grid {
  int64_t x, y = 1;
  bool is_cluster = false;  // the blocks along y are one cluster
};

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

bool are_aligned(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  return bits % 16 == 0;
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How a row is spread over threads; blocks == 0: it has no whole vectors, or does not fit.
struct Spread {
  int threads = 0, blocks = 0;
};

// The smallest cluster in which a block needs at most wanted_threads, else the largest one.
template <typename T>
Spread spread(int64_t width, int vectors_per_thread, int wanted_threads) {
  constexpr int kSize = 16 / sizeof(T);
  const int kinds = sizeof(T) == 8 || width % kSize != 0 ? 0 : 5;
  Spread found;
  for (int k = 0; k < kinds && current_gpu().clusters[k] > 0; ++k) {
    const int64_t warps = divide_up(width / kSize, int64_t(32 * vectors_per_thread) << k);
    if (warps * 32 <= kMostThreads) found = {static_cast<int>(warps * 32), 1 << k};
    if (warps * 32 <= wanted_threads) break;
  }
  return found;
}

// ---- forward

template <typename T>
const char* forward(const RmsForward& x, cudaStream_t stream) {
  using F = typename Statistics<T>::type;
  constexpr int kSize = 16 / sizeof(T);
  const bool in_vectors = x.width % kSize == 0 && are_aligned({x.y, x.s, x.a, x.b, x.weight});
  T *y = static_cast<T*>(x.y), *s = static_cast<T*>(x.s);
  const T *a = static_cast<const T*>(x.a), *b = static_cast<const T*>(x.b);
  F* rstd = static_cast<F*>(x.rstd);
  const Weight weight = {x.weight, x.weight_dtype != x.dtype};
  if constexpr (sizeof(T) < 8) {
    // One vector per thread is best up to 512 threads. Wide rows: four vectors for each of 128
    // threads take 129 us for 2048 rows of 32768, 256 us for 65536; 256 threads 131 and 260 us; two
    // vectors 133 and 277 us.
    const int64_t vectors = x.width / kSize;
    const int per_thread = vectors <= kMostThreads ? 1 : vectors <= 2 * kMostThreads ? 2 : 4;
    const auto kernel = per_thread == 1   ? forward_rows<T, 1>
                        : per_thread == 2 ? forward_rows<T, 2>
                                          : forward_rows<T, 4>;
    const int wanted_threads = per_thread == 4 ? 128 : kMostThreads;
    const Spread row = spread<T>(in_vectors ? x.width : 1, per_thread, wanted_threads);
    if (row.blocks > 0) {
      const int rows_per_block = row.blocks == 1 ? std::max(128 / row.threads, 1) : 1;
      const Grid grid = {divide_up(x.rows, rows_per_block), row.blocks, true};
      return launch(kernel, grid, dim3(row.threads, rows_per_block), stream, y, s, rstd, a, b,
                    weight, x.eps, x.rows, x.width);
    }
  }
  const auto kernel = in_vectors ? forward_any<T, kSize> : forward_any<T, 1>;
  return launch(kernel, Grid{x.rows}, kMostThreads, stream, y, s, rstd, a, b, weight, x.eps,
                x.width);
}

// ---- backward

// 512 threads per block, two vectors per thread, one block per multiprocessor: that has the bytes
// in flight that the memory wants, with the fewest partial sums. With few rows, each has a block of
// its own and twice the threads: 3.6 instead of 4.7 us for 64 rows of 1024.
template <typename T>
struct Backward {
  using F = typename Statistics<T>::type;
  int64_t rows, width;

  struct Plan {
    Spread row;
    int vectors = 2;     // per thread
    int64_t parts = 0;   // blocks along x, each of which leaves a row of sums
    int64_t groups = 1;  // rows of a block
  };

  // No blocks per row: by the kernels for any width. (A width of 1 has no whole vectors.)
  Plan plan(bool in_vectors) const {
    const Gpu& gpu = current_gpu();
    Plan made;
    made.row = spread<T>(in_vectors ? width : 1, 1, kMostThreads);
    if (rows <= gpu.multiprocessors && made.row.blocks > 0 && made.row.blocks <= 8) {
      made.vectors = 1;
    } else {
      made.row = spread<T>(in_vectors ? width : 1, 2, kMostThreads);
      if (made.row.blocks > 0) made.groups = kMostThreads / made.row.threads;
    }
    if (made.row.blocks > 0) {
      const int64_t clusters = gpu.clusters[__builtin_ctz(made.row.blocks)];
      made.parts = std::min(divide_up(rows, made.groups), clusters);
    } else {
      const int64_t columns = divide_up(width, kMostThreads * 16 / sizeof(T));
      made.parts = std::min(rows, divide_up(4 * gpu.multiprocessors, columns));
    }
    return made;
  }

  int64_t scratch_size() const {  // for both ways: whether all is aligned is not known here
    return std::max(plan(true).parts, plan(false).parts) * width + rows;
  }

  const char* run(const RmsBackward& x, cudaStream_t stream) const {
    constexpr int kSize = 16 / sizeof(T);
    const bool in_vectors =
        width % kSize == 0 && are_aligned({x.dx, x.dy, x.ds, x.s, x.weight});  // NULL is aligned
    const Plan made = plan(in_vectors);
    const int64_t parts = made.parts;
    F *scratch = static_cast<F*>(x.scratch), *means = scratch + parts * width;
    const WeightGradient<F> sums = {x.dweight, scratch, x.weight_dtype != x.dtype};
    const Weight weight = {x.weight, sums.is_wide};
    T* dx = static_cast<T*>(x.dx);
    const T *dy = static_cast<const T*>(x.dy), *ds = static_cast<const T*>(x.ds),
            *s = static_cast<const T*>(x.s);
    const F* rstd = static_cast<const F*>(x.rstd);
    const char* error = nullptr;
    if (made.row.blocks == 0) {
      const auto find_means = in_vectors ? backward_means_any<T, kSize> : backward_means_any<T, 1>;
      const auto kernel = in_vectors ? backward_any<T, kSize> : backward_any<T, 1>;
      const Grid grid = {parts, divide_up(width, kMostThreads * (in_vectors ? kSize : 1))};
      error =
          launch(find_means, Grid{rows}, kMostThreads, stream, means, dy, s, weight, rstd, width);
      if (error != nullptr) return error;
      error = launch(kernel, grid, kMostThreads, stream, dx, sums, dy, ds, s, weight, rstd, means,
                     rows, width);
    } else if constexpr (sizeof(T) < 8) {
      const auto kernel = made.vectors == 1 ? backward_rows<T, 1> : backward_rows<T, 2>;
      const dim3 threads(made.row.threads, static_cast<unsigned>(made.groups));
      error = launch(kernel, Grid{parts, made.row.blocks, true}, threads, stream, dx, sums, dy, ds,
                     s, weight, rstd, rows, width);
    }
    if (error != nullptr || parts == 1) return error;
    const Grid grid = {divide_up(width, 32)};
    return launch(add_partial<T>, grid, dim3(32, 32), stream, sums, parts, width);
  }
};

// From a dtype known at run time to a type known at compile time.
template <typename Result, typename Function>
Result with_type(RmsDtype dtype, Result otherwise, Function function) {
  switch (dtype) {
    case RMS_FLOAT32:
      return function(static_cast<float*>(nullptr));
    case RMS_FLOAT64:
      return function(static_cast<double*>(nullptr));
    case RMS_FLOAT16:
      return function(static_cast<__half*>(nullptr));
    case RMS_BFLOAT16:
      return function(static_cast<__nv_bfloat16*>(nullptr));
  }
  return otherwise;
}

template <typename Pointer>
using Type = std::remove_pointer_t<Pointer>;

}  // namespace

extern "C" const char* launch_add_rms_norm(const RmsForward* x, CUstream_st* stream) {
  return with_type(x->dtype, "unknown dtype",
                   [&](auto* type) { return forward<Type<decltype(type)>>(*x, stream); });
}

extern "C" const char* launch_add_rms_norm_backward(const RmsBackward* x, CUstream_st* stream) {
  return with_type(x->dtype, "unknown dtype", [&](auto* type) {
    return Backward<Type<decltype(type)>>{x->rows, x->width}.run(*x, stream);
  });
}

extern "C" int64_t rms_scratch_size(int64_t rows, int64_t width, RmsDtype dtype) {
  return with_type(dtype, int64_t(0), [&](auto* type) {
    return Backward<Type<decltype(type)>>{rows, width}.scratch_size();
  });
}
