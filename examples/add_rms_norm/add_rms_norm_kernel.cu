// The launchers: what the GPU has room for, and how a plan becomes a launch.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "backward.cuh"
#include "common/divide.h"
#include "common/launch.cuh"
#include "forward.cuh"
#include "plan.h"
#include "tiles.cuh"

namespace {

// The blocks of a kernel that one multiprocessor runs at the same time, by the block's warps.
template <typename Kernel>
void count_blocks(int (&blocks)[kMostThreads / 32 + 1], Kernel kernel) {
  for (int warps = 1; warps <= kMostThreads / 32; ++warps)
    message_of(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks[warps], kernel, 32 * warps, 0));
}

template <typename T>
Gpu ask_current_gpu() {
  Gpu gpu;
  gpu.multiprocessors = std::max(device_attribute(cudaDevAttrMultiProcessorCount), 1);
  gpu.clusters[0] = gpu.multiprocessors;
  if constexpr (sizeof(T) < 8) {
    count_blocks(gpu.forward_tiles, forward_tiles<T>);
    count_blocks(gpu.backward_tiles, backward_tiles<T>);
  }
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

// The current GPU, asked once.
template <typename T>
const Gpu& current_gpu() {
  static std::mutex mutex;
  static std::map<int, Gpu> gpus;
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = gpus.find(device);
  return known != gpus.end() ? known->second : gpus[device] = ask_current_gpu<T>();
}

template <typename Function, typename... Arguments>
const char* start(Function kernel, const Grid& grid, cudaStream_t stream, Arguments... arguments) {
  if (grid.blocks_x == 0) return nullptr;  // a grid of no blocks is an error
  if (grid.blocks_x >= int64_t(1) << 31 || grid.blocks_y >= 65536)
    return "too many rows or columns";
  const auto x = static_cast<unsigned>(grid.blocks_x), y = static_cast<unsigned>(grid.blocks_y);
  const dim3 threads(grid.threads_x, grid.threads_y), cluster(1, grid.is_cluster ? y : 1);
  const bool is_early = has_hopper_code(kernel);
  return launch(kernel, {dim3(x, y), threads, 0, cluster, is_early}, stream, arguments...);
}

template <typename T, typename Untyped>
T* as(Untyped* pointer) {
  return static_cast<T*>(pointer);
}

// One vector per thread: the most blocks that load while others wait; rows of up to 4096 halves fit
// 512 threads. Two: up to 8192, without a cluster. Four: wider ones, in clusters of small blocks.
// On an H200 2048 rows of 65536 take 260 us so, and 365 with two vectors in blocks twice as large.
template <typename T, bool kIsWhole>
auto forward_kernel(int vectors_per_thread) {
  if (vectors_per_thread == 1) return forward_rows<T, 1, kIsWhole>;
  if (vectors_per_thread == 2) return forward_rows<T, 2, kIsWhole>;
  return forward_rows<T, 4, kIsWhole>;
}

template <typename T>
const char* run(const RmsForward& x, cudaStream_t stream) {
  const Plan plan = make_plan(x, current_gpu<T>());
  const Weight weight = {x.weight, x.weight_dtype != x.dtype};
  if constexpr (sizeof(T) < 8) {
    if (plan.kernel == Kernel::kTiles) {
      return start(forward_tiles<T>, plan.grid, stream, x.y, x.s, x.rstd, x.a, x.b, weight, x.eps,
                   x.rows, x.width, plan.tile_rows);
    }
    if (plan.kernel == Kernel::kInRegisters) {
      const auto kernel = plan.is_whole ? forward_kernel<T, true> : forward_kernel<T, false>;
      return start(kernel(plan.vectors_per_thread), plan.grid, stream, x.y, x.s, x.rstd, x.a, x.b,
                   weight, x.eps, x.rows, x.width);
    }
  }
  const auto kernel = plan.is_whole ? forward_any<T, 16 / sizeof(T)> : forward_any<T, 1>;
  return start(kernel, plan.grid, stream, x.y, x.s, x.rstd, x.a, x.b, weight, x.eps, x.width);
}

template <typename T, bool kIsWhole>
auto backward_kernel(int vectors_per_thread) {
  return vectors_per_thread == 1 ? backward_rows<T, 1, kIsWhole> : backward_rows<T, 2, kIsWhole>;
}

template <typename T>
const char* run_backward(const Backward<T>& p, const Plan& plan, Statistics<T>* means,
                         cudaStream_t stream) {
  if constexpr (sizeof(T) < 8) {
    if (plan.kernel == Kernel::kTiles)
      return start(backward_tiles<T>, plan.grid, stream, p, plan.tile_rows);
    if (plan.kernel == Kernel::kInRegisters) {
      const auto kernel = plan.is_whole ? backward_kernel<T, true> : backward_kernel<T, false>;
      return start(kernel(plan.vectors_per_thread), plan.grid, stream, p);
    }
  }
  const Grid row_per_block = {p.rows};
  const auto find_means =
      plan.is_whole ? backward_means_any<T, 16 / sizeof(T)> : backward_means_any<T, 1>;
  const auto kernel = plan.is_whole ? backward_any<T, 16 / sizeof(T)> : backward_any<T, 1>;
  const char* error = start(find_means, row_per_block, stream, p, means);
  return error != nullptr ? error : start(kernel, plan.grid, stream, p, means);
}

template <typename T>
const char* run(const RmsBackward& x, cudaStream_t stream) {
  using F = Statistics<T>;
  const Plan plan = make_plan(x, current_gpu<T>());
  const int64_t parts = plan.grid.blocks_x;
  F *partial = static_cast<F*>(x.scratch), *means = partial + parts * x.width;
  const bool is_wide = x.weight_dtype != x.dtype;
  const WeightGradient dweight = {x.dweight, is_wide};
  const WeightGradient sums = parts > 1 ? WeightGradient{partial, true} : dweight;
  const Weight weight = {x.weight, is_wide};
  const Backward<T> p = {as<T>(x.dx),      sums,   as<const T>(x.dy),   as<const T>(x.ds),
                         as<const T>(x.s), weight, as<const F>(x.rstd), x.rows,
                         x.width};
  const char* error = run_backward(p, plan, means, stream);
  if (error != nullptr || parts == 1) return error;
  const auto warps = static_cast<int>(std::clamp<int64_t>(parts, 1, 32));
  const Grid columns = {divide_up(x.width, 32), 1, 32, warps};
  return start(add_partial<T>, columns, stream, dweight, partial, parts, x.width);
}

// Calls function(T()) with the type of a dtype.
template <typename Function>
auto with_type(RmsDtype dtype, Function function) {
  if (dtype == RMS_FLOAT32) return function(float());
  if (dtype == RMS_FLOAT64) return function(double());
  if (dtype == RMS_FLOAT16) return function(__half());
  return function(__nv_bfloat16());
}

}  // namespace

const char* launch_add_rms_norm(const RmsForward& x, CUstream_st* stream) {
  return with_type(x.dtype, [&](auto type) { return run<decltype(type)>(x, stream); });
}
const char* launch_add_rms_norm(const RmsBackward& x, CUstream_st* stream) {
  return with_type(x.dtype, [&](auto type) { return run<decltype(type)>(x, stream); });
}
int64_t rms_scratch_size(const RmsBackward& x) {
  const Gpu& gpu = *with_type(x.dtype, [](auto type) { return &current_gpu<decltype(type)>(); });
  return make_plan(x, gpu).grid.blocks_x * x.width + x.rows;
}
