// One launcher for all kernels, and what launchers ask of the GPU.
#pragma once
#include <cuda_runtime.h>
#include <stddef.h>

#include <map>
#include <mutex>
#include <utility>

// Returns NULL, or the error's message, which is static (do not free). Clears the error: torch
// would report it again, at its next call.
inline const char* message_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}

// Of the current device.
inline int device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, which, device);
  return value;
}

// What the current device says of a kernel. Each device has its own code and settings for it.
struct KernelOnDevice {
  cudaError_t error;
  int ptx_version;        // 90: compiled for sm_90, or by the driver from PTX for sm_90
  size_t static_shared;   // bytes of shared memory that the kernel declares
  size_t dynamic_shared;  // bytes that a launch may add
};

// Asks the current device, and allows the kernel to use all of a block's shared memory. That limit
// is the same for all launches: another thread, or a node of a CUDA graph, may need more than this
// one.
inline KernelOnDevice prepare_kernel(const void* kernel) {
  cudaFuncAttributes found = {};
  cudaError_t error = cudaFuncGetAttributes(&found, kernel);
  if (error != cudaSuccess) return {error, 0, 0, 0};
  const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int dynamic = most - static_cast<int>(found.sharedSizeBytes);
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic);
  return {error, found.ptxVersion, found.sharedSizeBytes, static_cast<size_t>(dynamic)};
}

// The same, once for each device and kernel, whichever of several threads comes first. After an
// error the next call tries again. (static: the linker would let two libraries share one map, and
// their copies of this file may differ.)
static inline KernelOnDevice on_current_device(const void* kernel) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, KernelOnDevice> prepared;
  std::pair<int, const void*> key = {0, kernel};
  cudaGetDevice(&key.first);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = prepared.find(key);
  if (known != prepared.end()) return known->second;
  const KernelOnDevice found = prepare_kernel(kernel);
  if (found.error == cudaSuccess) prepared[key] = found;
  message_of(found.error);  // clears it
  return found;
}

// Whether clusters and the early start are in the kernel's code: it must have been compiled for
// sm_90 or later. The driver may have compiled older code for a newer GPU.
template <typename... Parameters>
bool has_hopper_code(void (*kernel)(Parameters...)) {
  const KernelOnDevice found = on_current_device(reinterpret_cast<const void*>(kernel));
  return found.error == cudaSuccess && found.ptx_version >= 90;
}

struct Launch {
  dim3 blocks, threads;
  size_t shared = 0;      // bytes of shared memory, above what the kernel declares
  dim3 cluster = 1;       // blocks of a cluster
  bool is_early = false;  // may start while the kernel before runs: it must wait by itself
};

// Starts a kernel in a stream of the current device. Converts each argument to the kernel's
// parameter. Returns NULL or an error message: of this launch, or of earlier work on the GPU, whose
// failure CUDA may report here.
template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), const Launch& how, cudaStream_t stream,
                   const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {how.blocks, how.threads, how.shared, stream, attributes, 0};
  cudaError_t error = cudaSuccess;
  if (how.shared > 0) {
    const KernelOnDevice found = on_current_device(reinterpret_cast<const void*>(kernel));
    error = found.error;
    if (error == cudaSuccess && how.shared > found.dynamic_shared)
      return "the kernel needs more shared memory per block than this GPU has";
  }
  if (how.is_early) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  const unsigned size = how.cluster.x * how.cluster.y * how.cluster.z;
  if (size > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {how.cluster.x, how.cluster.y, how.cluster.z};
  }
  if (size > 8 && error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error == cudaSuccess)
    error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  return message_of(error);
}
