// What the current GPU can do with the kernels, and how to launch one.
#pragma once
#include <mutex>

#include "backward.cuh"

// What the current GPU can do with this library.
struct Gpu {
  int multiprocessors = 0;
  int clusters[5] = {};  // how many clusters of 1, 2, 4, 8, 16 blocks run at the same time
};

inline const Gpu& current_gpu() {
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
  // A library that was compiled for older GPUs has no clusters and no overlap in it, even if the
  // driver has compiled it for a newer one.
  cudaFuncAttributes compiled = {};
  cudaFuncGetAttributes(&compiled, kernel);
  if (compiled.ptxVersion < 90) return gpu;
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

// Converts each argument to the kernel's parameter: void* to T*, double to float.
template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), Grid grid, dim3 threads, cudaStream_t stream,
                   Arguments... arguments) {
  if (grid.x == 0) return nullptr;  // a grid of no blocks is an error
  if (grid.x >= int64_t(1) << 31 || grid.y >= 65536) return "too many rows or columns";
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {blocks, threads, 0, stream, attributes, 0};
  if (current_gpu().clusters[1] > 0) {  // sm_90 and later
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.is_cluster && grid.y > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {1, blocks.y, 1};
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // or torch would report it again, at its next call
  return cudaGetErrorString(error);
}

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
